"""A query at a site: noised counts of its rows, paid for first, answered once a run and for ever.

The question brings a model, or nothing where none is judged. What is counted, of which rows, with which noise and at which price
is what the site has agreed to when the run began. To be asked about held-out rows is the end of a run: whoever asks gets no
further round, so that nobody looks at them and then goes on."""

import hashlib
import uuid
from pathlib import Path

import torch

from tacit.algorithms import rule_of
from tacit.deploy.site import layout, replies
from tacit.deploy.site.agreement import Agreement, Terms
from tacit.deploy.site.join import Joined
from tacit.deploy.site.pay import pay_query
from tacit.digest import mark, tensor_bytes
from tacit.engine.queries import Evaluation, Query, columns_asked, judged_by, ranges_asked, released
from tacit.errors import BadInput, Refused
from tacit.experiment.extras import EVALUATION, RANGES, STATS
from tacit.types import Client, Message
from tacit.wire import all_finite, pack, unpack

# What the server broadcasts for a round, checked by the site before anything is bound, charged or trained.


def read_broadcast(body: bytes, terms: Terms) -> Message:
    """The message of a round's question.

    Guarantee: its `params` are one float32 vector of the agreed length, all of it finite.

    Raises: Refused for bytes that are no message, and for parameters that are missing, of another shape or type, or not finite.

    >>> from tacit.wire import pack
    >>> question = pack(Message("server", {"params": torch.zeros(3)}))
    >>> read_broadcast(question, Terms("", 1.0, rounds=3, parameters=3)).tensors["params"].shape
    torch.Size([3])
    """
    try:
        received = unpack(body)
    except BadInput as error:
        raise Refused(f"The server's parameters cannot be read: {error}") from None
    params = received.tensors.get("params")
    if params is None or params.shape != (terms.parameters,) or params.dtype != torch.float32:
        sent = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({sent}) than the {terms.parameters} that were agreed.")
    if not all_finite(params):
        raise Refused("The server sent parameters that are not finite.")
    return received


def refuse_odd_word(joined: Joined, received: Message) -> None:
    """Refuses what the run's aggregation rule cannot have told its clients beside the parameters, such as a basis of a wrong size.

    Raises: Refused, where the rule's own `refuse` raises BadInput. An algorithm without a rule has nothing to tell.
    """
    rule = rule_of(joined.parts.algorithm)
    try:
        if rule is not None:
            rule.refuse(received, size=joined.agreement.terms.parameters)
    except BadInput as error:
        raise Refused(f"The server's word beside the parameters cannot be used: {error}") from None


ONLY = 0  # the one question of a query, where an outbox counts rounds
CHECK_BYTES = 32  # SHA-256 of question and answer, in front of a kept answer


def refuse_unasked(agreed: Agreement, query: str) -> None:
    """Refuses a query that is not among those which were agreed. Raises: Refused."""
    if query not in agreed.terms.queries:
        known = " and ".join(agreed.terms.queries) or "none"
        raise Refused(f"The server asks the query {query[:40]!r}; agreed were: {known}.")


def refuse_ended(site: Path, agreed: Agreement) -> None:
    """Refuses a new round of a run whose counts were asked for: the server has called its model the last. Raises: Refused."""
    if layout.round_files(_folder(site, agreed, EVALUATION)):
        raise Refused(f"The server has asked the query {EVALUATION}, which ends the run: there is no round after it.")


def kept(site: Path, agreed: Agreement, query: str, body: bytes) -> bytes | None:
    """The answer that was given to this very question; None where the query is still to be answered.

    Raises: Refused where another question was answered, and for an answer that is not as it was kept.
    """
    found = replies.find(_folder(site, agreed, query), ONLY, body, called=f"The query {query}")
    if found is not None and found[:CHECK_BYTES] != _check(body, found[CHECK_BYTES:]):
        raise Refused(f"The site's answer to the query {query} is not as it was kept: put it back from a copy.")
    return None if found is None else found[CHECK_BYTES:]


def answer(site: Path, joined: Joined, query: str, body: bytes) -> bytes:
    """The site's noised counts, as bytes for the wire.

    Guarantee: the question is the query's own on disk, and the ledger charged on disk, before any noise is drawn; the answer is
    on disk before it is returned. Nothing but the finite parameters of the agreed number is taken from a question about a model,
    nothing at all from any other, and whether it is answered does not depend on a row: without any row the counts are zeros, with
    noise.

    Assumes: `refuse_unasked` and `kept` have let it pass.

    Raises: Refused for other parameters, for another question than the first, and where an answer that was paid for is lost and
    cannot be given again bit for bit; BudgetExhausted; LedgerError, OSError.
    """
    asked, client, question = COUNTED[query](joined, body)
    noise = joined.parts.plan.queries.mechanism(query, client.index, l2_squared=asked.l2_squared, cells=asked.cells)
    folder = replies.make_folder(_folder(site, joined.agreement, query))
    replies.bind(folder, ONLY, body, called=f"The query {query}")
    pay_query(joined, query, _attempt(joined, asked, client, question))
    counts = released(joined.parts, asked, client, noise, question)
    raw = pack(Message(client.id, {"counts": torch.from_numpy(counts)}))
    replies.keep(folder, ONLY, body, _check(body, raw) + raw)
    return raw


Counted = tuple[Query, Client, str]  # what is counted, of whose rows, and the digest of what it is asked about


def _evaluation(joined: Joined, body: bytes) -> Counted:
    """The model that came along, judged on the rows that the experiment holds out."""
    params = read_broadcast(body, joined.agreement.terms).tensors["params"]
    judged = judged_by(joined.parts.experiment, joined.parts.dataset)
    if judged is None or joined.asked is None:
        raise Refused("This run holds out no rows.")
    return Evaluation(judged, joined.parts, params), joined.asked, mark("model", tensor_bytes(params))


def _columns(joined: Joined, body: bytes) -> Counted:
    """The columns that the experiment names, of the rows that are trained on."""
    query = columns_asked(joined.parts.experiment, joined.parts.dataset)
    if query is None or body:
        raise Refused("This run asks for no statistics, or the question has more than its name.")
    return query, joined.client, ""


def _ranges(joined: Joined, body: bytes) -> Counted:
    """The private columns, of the rows that are trained on, as they stand in the file."""
    query = ranges_asked(joined.parts.experiment, joined.parts.dataset)
    if query is None or body:
        raise Refused("This run asks for no ranges, or the question has more than its name.")
    return query, joined.client, ""


COUNTED = {EVALUATION: _evaluation, STATS: _columns, RANGES: _ranges}


def _attempt(joined: Joined, asked: Query, client: Client, question: str) -> str:
    """The name of the release: the same name is the same bits. What cannot be repeated has another one every time."""
    fresh = uuid.uuid4().hex if joined.parts.nonce else ""
    return mark("site", joined.parts.releases.client(client), repr(asked), question, fresh)


def _folder(site: Path, agreed: Agreement, query: str) -> Path:
    return layout.counted_folder(layout.run_folder(site, agreed.run), query)


def _check(question: bytes, answer: bytes) -> bytes:
    return hashlib.sha256(replies.question_hash(question) + answer).digest()
