"""A query at a site: noised counts of its rows, paid for first, answered once a run and for ever.

The question brings a model, or nothing where none is judged. What is counted, of which rows, with which noise and at which price
is what the site has agreed to when the run began. To be asked about held-out rows is the end of a run: whoever asks gets no
further round, so that nobody looks at them and then goes on.
"""

import hashlib
import uuid
from pathlib import Path

import torch

from tacit.digest import mark, tensor_bytes
from tacit.engine.asking import Query, released
from tacit.engine.at_clients import Evaluation, judged_by
from tacit.engine.describing import columns_asked
from tacit.engine.ranges import ranges_asked
from tacit.engine.wire import pack
from tacit.errors import Refused
from tacit.experiment.asking import EVALUATION, RANGES, STATS
from tacit.federation.site import layout, outbox, store
from tacit.federation.site.agreement import Agreement
from tacit.federation.site.broadcast import read_broadcast
from tacit.federation.site.join import Joined
from tacit.federation.site.pay import pay_query
from tacit.types import Client, Message

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
    found = outbox.find(_folder(site, agreed, query), ONLY, body, called=f"The query {query}")
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
    noise = joined.parts.plan.query_noise(query, client.index, l2_squared=asked.l2_squared, cells=asked.cells)
    folder = store.make_folder(_folder(site, joined.agreement, query))
    outbox.bind(folder, ONLY, body, called=f"The query {query}")
    pay_query(joined, query, _attempt(joined, asked, client, question))
    counts = released(joined.parts, asked, client, noise, question)
    raw = pack(Message(client.id, {"counts": torch.from_numpy(counts)}))
    outbox.keep(folder, ONLY, body, _check(body, raw) + raw)
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
    return hashlib.sha256(outbox.question_hash(question) + answer).digest()
