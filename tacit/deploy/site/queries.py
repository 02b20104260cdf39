"""A query at a site: noised counts of its rows, paid for first, answered once a run and for ever.

The question brings a model, or nothing where none is judged. What is counted, of which rows, with which noise and at which price
is what the site has agreed to when the run began. To be asked about held-out rows is the end of a run: whoever asks gets no
further round, so that nobody looks at them and then goes on."""

import hashlib
from pathlib import Path

import torch

from tacit.deploy.site import layout, replies
from tacit.deploy.site.accept import Accepted
from tacit.deploy.site.agreement import Agreement
from tacit.deploy.site.pay import pay_query
from tacit.deploy.site.replies import Slot
from tacit.deploy.site.requests import Terms
from tacit.engine.queries import Evaluation, Query, columns_asked, judged_by, ranges_asked, released
from tacit.errors import BadInput, Refused
from tacit.experiment.extras import EVALUATION, RANGES, STATS
from tacit.types import Client, Message
from tacit.wire import all_finite, digest_of, pack, tensor_bytes, unpack


def sent(params: torch.Tensor) -> bytes:
    """The body of the server's last word: the parameters that the run left."""
    return pack(Message("server", {"params": params}))


def read_broadcast(body: bytes, terms: Terms) -> Message:
    """The message of a round's question, whose `params` are one finite float32 vector of the agreed length. Raises: Refused.

    >>> read_broadcast(sent(torch.zeros(3)), Terms("", 1.0, rounds=3, parameters=3)).tensors["params"].shape
    torch.Size([3])
    """
    try:
        received = unpack(body)
    except BadInput as error:
        raise Refused(f"The server's parameters cannot be read: {error}") from None
    params = received.tensors.get("params")
    if params is None or params.shape != (terms.parameters,) or params.dtype != torch.float32:
        found = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({found}) than the {terms.parameters} that were agreed.")
    if not all_finite(params):
        raise Refused("The server sent parameters that are not finite.")
    return received


def refuse_odd_word(accepted: Accepted, received: Message) -> None:
    """Refuses what the run's rule cannot have sent beside the parameters, such as a basis of a wrong size. Raises: Refused."""
    rule = accepted.parts.releases.rule
    try:
        if rule is not None:
            rule.refuse(received, size=accepted.agreement.terms.parameters)
    except BadInput as error:
        raise Refused(f"The server's word beside the parameters cannot be used: {error}") from None


CHECK_BYTES = 32  # SHA-256 of question and answer, in front of a kept answer


def slot_of(site: Path, agreed: Agreement, query: str) -> Slot:
    """Where the one question and the one answer of a query lie. Raises: Refused for a query that was not agreed."""
    if query not in agreed.terms.queries:
        known = " and ".join(agreed.terms.queries) or "none"
        raise Refused(f"The server asks the query {query[:40]!r}; agreed were: {known}.")
    return Slot(layout.counted_folder(site, agreed.run, query), 0, f"The query {query}")


def refuse_ended(site: Path, agreed: Agreement) -> None:
    """Refuses a new round of a run whose counts were asked for: the server has called its model the last. Raises: Refused."""
    if layout.round_files(layout.counted_folder(site, agreed.run, EVALUATION)):
        raise Refused(f"The server has asked the query {EVALUATION}, which ends the run: there is no round after it.")


def kept(slot: Slot, body: bytes) -> bytes | None:
    """The answer that was given to this very question, None if none was. Raises: Refused, also for one that is not as it
    was kept.
    """
    found = replies.find(slot, body)
    if found is None:
        return None
    raw = found.raw[CHECK_BYTES:]
    if found.raw[:CHECK_BYTES] != _check(body, raw):
        raise Refused(f"{slot}: the site's answer is not as it was kept, so put it back from a copy.")
    return raw


def answer(accepted: Accepted, slot: Slot, query: str, body: bytes) -> bytes:
    """The site's noised counts, as bytes for the wire. Raises: Refused, BudgetExhausted, LedgerError, OSError.

    Guarantee: the question is the query's own on disk, and the ledger charged on disk, before any noise is drawn; the answer is
    on disk before it is returned. Nothing but the finite parameters of the agreed number is taken from a question about a
    model, nothing at all from any other, and whether it is answered does not depend on a row: without any the counts are zeros,
    with noise.
    """
    asked, client, question = _counted(accepted, query, body)
    plan = accepted.parts.plan
    noise = plan.queries.mechanism(query, client.index, l2_squared=asked.l2_squared, cells=asked.cells)
    paid = pay_query(replies.bind(accepted, slot, body), query, client, repr(asked), question)
    counts = released(paid.bound.accepted.parts, asked, client, noise, question)
    raw = pack(Message(client.id, {"counts": torch.from_numpy(counts)}))
    replies.keep(slot, body, _check(body, raw) + raw)
    return raw


def _counted(accepted: Accepted, query: str, body: bytes) -> tuple[Query, Client, str]:
    experiment, rows = accepted.parts.experiment, accepted.parts.dataset
    if query == EVALUATION:  # the model that came along, judged on the rows that the experiment holds out
        params = read_broadcast(body, accepted.agreement.terms).tensors["params"]
        judged = judged_by(experiment, rows)
        if judged is None or accepted.asked is None:
            raise Refused("This run holds out no rows.")
        return Evaluation(judged, accepted.parts, params), accepted.asked, digest_of("model", tensor_bytes(params))
    asked = {STATS: columns_asked, RANGES: ranges_asked}[query](experiment, rows)  # of the rows that are trained on
    if asked is None or body:
        raise Refused(f"This run does not ask for {query}, or the question has more than its name.")
    return asked, accepted.client, ""


def _check(question: bytes, answer: bytes) -> bytes:
    return hashlib.sha256(replies.question_hash(question) + answer).digest()
