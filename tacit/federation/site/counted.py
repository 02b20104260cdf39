"""A query at a site: noised counts of the rows that the experiment holds out, paid for first, answered once a run and for ever.

The question brings a model and nothing else. What is counted, of which rows, with which noise and at which price is what the site
has agreed to when the run began. It is the last question of a run: whoever asks for the counts gets no further round, so that
nobody looks at held-out rows and then goes on.
"""

import hashlib
import uuid
from pathlib import Path

import torch

from tacit.digest import mark, tensor_bytes
from tacit.engine.asking import released
from tacit.engine.at_clients import Evaluation, judged_by
from tacit.engine.wire import pack
from tacit.errors import Refused
from tacit.federation.site import layout, outbox, store
from tacit.federation.site.agreement import Agreement
from tacit.federation.site.broadcast import read_broadcast
from tacit.federation.site.join import Joined
from tacit.federation.site.pay import pay_query
from tacit.types import Message

ONLY = 0  # the one question of a query, where an outbox counts rounds
CHECK_BYTES = 32  # SHA-256 of question and answer, in front of a kept answer


def refuse_unasked(agreed: Agreement, query: str) -> None:
    """Refuses a query that is not among those which were agreed. Raises: Refused."""
    if query not in agreed.terms.queries:
        known = " and ".join(agreed.terms.queries) or "none"
        raise Refused(f"The server asks the query {query[:40]!r}; agreed were: {known}.")


def refuse_ended(site: Path, agreed: Agreement) -> None:
    """Refuses a new round of a run whose counts were asked for: the server has called its model the last. Raises: Refused."""
    folder = layout.run_folder(site, agreed.run)
    for query in agreed.terms.queries:
        if layout.round_files(layout.counted_folder(folder, query)):
            raise Refused(f"The server has asked the query {query}, which ends the run: there is no round after it.")


def kept(site: Path, agreed: Agreement, query: str, body: bytes) -> bytes | None:
    """The answer that was given to this very question; None where the query is still to be answered.

    Raises: Refused where another question was answered, and for an answer that is not as it was kept.
    """
    found = outbox.find(_folder(site, agreed, query), ONLY, body, called=f"The query {query}")
    if found is not None and found[:CHECK_BYTES] != _check(body, found[CHECK_BYTES:]):
        raise Refused(f"The site's answer to the query {query} is not as it was kept: put it back from a copy.")
    return None if found is None else found[CHECK_BYTES:]


def answer(site: Path, joined: Joined, query: str, body: bytes) -> bytes:
    """The site's noised counts for the model in `body`, as bytes for the wire.

    Guarantee: the question is the query's own on disk, and the ledger charged on disk, before any noise is drawn; the answer is
    on disk before it is returned. Nothing but the finite parameters of the agreed number is taken from the question, and whether
    it is answered does not depend on a row: without any held-out row the counts are zeros, with noise.

    Assumes: `refuse_unasked` and `kept` have let it pass.

    Raises: Refused for other parameters, for another question than the first, and where an answer that was paid for is lost and
    cannot be given again bit for bit; BudgetExhausted; LedgerError, OSError.
    """
    params = read_broadcast(body, joined.agreement.terms).tensors["params"]
    asked = _evaluation(joined, params)
    client = joined.asked
    if client is None:
        raise Refused(f"The site holds out no rows for the query {query}.")
    noise = joined.parts.plan.query_noise(query, client.index, l2_squared=asked.l2_squared, cells=asked.cells)
    folder, question = store.make_folder(_folder(site, joined.agreement, query)), mark("model", tensor_bytes(params))
    outbox.bind(folder, ONLY, body, called=f"The query {query}")
    pay_query(joined, query, _attempt(joined, asked, question))
    counts = released(joined.parts, asked, client, noise, question)
    raw = pack(Message(client.id, {"counts": torch.from_numpy(counts)}))
    outbox.keep(folder, ONLY, body, _check(body, raw) + raw)
    return raw


def _evaluation(joined: Joined, params: torch.Tensor) -> Evaluation:
    judged = judged_by(joined.parts.experiment, joined.parts.dataset)
    if judged is None:
        raise Refused("This run holds out no rows.")
    return Evaluation(judged, joined.parts, params)


def _attempt(joined: Joined, asked: Evaluation, question: str) -> str:
    """The name of the release: the same name is the same bits. What cannot be repeated has another one every time."""
    rows = joined.parts.releases.client(joined.asked) if joined.asked is not None else b""
    fresh = uuid.uuid4().hex if joined.parts.nonce else ""
    return mark("site", rows, repr(asked), question, fresh)


def _folder(site: Path, agreed: Agreement, query: str) -> Path:
    return layout.counted_folder(layout.run_folder(site, agreed.run), query)


def _check(question: bytes, answer: bytes) -> bytes:
    return hashlib.sha256(outbox.question_hash(question) + answer).digest()
