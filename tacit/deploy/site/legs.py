"""A site's legs of a round under masks (tacit/crypto/masks.py): it joins before it pays, signs one list, and gives its shares.

Guarantee: nothing of the rows is read, paid or drawn for an attempt that is refused. A report leaves as the very same bytes or not
at all, and of every round one list of survivors is signed and one is given shares of, the same: the ledger notes both before they
leave, so that neither a restart, nor a copy of the site, nor older files beside a newer ledger answer with another."""

from tacit.algorithms.encrypted import Encrypted
from tacit.crypto.masked import Masked
from tacit.deploy.site import layout, replies
from tacit.deploy.site.agreement import Accepted
from tacit.deploy.site.layout import ANSWER, JOINED, SIGNED, UNMASKED
from tacit.deploy.site.masks import AtSite, listed, parted, read_list, shares_to_bytes
from tacit.deploy.site.replies import Slot, question_hash
from tacit.deploy.site.requests import Prepare, Sign, Unmask
from tacit.errors import Refused, TacitError

Answered = tuple[bytes, str]  # an answer, and the sentence that the log has of it


def legs_of(accepted: Accepted, group: str | None = None) -> AtSite | None:
    """The site's legs in the sums of its own group; None where its reports are not under masks. Raises: Refused for others."""
    algorithm, name = accepted.parts.algorithm, accepted.client.id
    own = algorithm.groups[name] if isinstance(algorithm, Encrypted) else None
    legs = own.seal.legs if own is not None and isinstance(own.seal, Masked) else None
    if group is not None and (own is None or own.name != group or legs is None):
        raise Refused(f"The server asks about a sum of {group!r}, and this site is in no such sum under masks.")
    return legs if isinstance(legs, AtSite) else None


def join(accepted: Accepted, slot: Slot, body: bytes) -> bytes:
    """Joins the attempt that a round's question is for, and returns the question itself; all of it where there are no masks.

    Raises: Refused, before anything is bound, paid or drawn.
    """
    legs, algorithm = legs_of(accepted), accepted.parts.algorithm
    if legs is None or not isinstance(algorithm, Encrypted):
        return body
    if accepted.ledger is not None and accepted.ledger.released(_report(slot)):
        raise Refused(
            f"{slot} was reported in before and the answer lost: a second report would leave under the same masks."
        )
    try:
        question, setups = parted(body, algorithm.groups[accepted.client.id].name, legs.roster)
        legs.join(setups, slot.round, model=question_hash(body).hex())
    except TacitError as error:
        raise Refused(f"The round's masks are refused: {error}") from None
    return question


def note_joined(accepted: Accepted, slot: Slot) -> None:
    """Puts what was joined on disk. Assumes: the question is bound, so that there is one attempt for this round."""
    if (legs := legs_of(accepted)) is not None:
        legs.note(slot.round, slot.file(JOINED))


def note_report(accepted: Accepted, slot: Slot, raw: bytes) -> None:
    """Has the ledger know the report that is about to leave. Raises: LedgerError where another one was, under the same masks."""
    if legs_of(accepted) is not None and accepted.ledger is not None:
        accepted.ledger.release(_report(slot), question_hash(raw).hex())


def _report(slot: Slot) -> str:
    return f"report of round {slot.round + 1} under masks"


def answer(accepted: Accepted, asked: Prepare | Sign | Unmask, body: bytes) -> Answered:
    """One of the legs beside the report. Raises: Refused; LedgerError for a list that is not the round's one."""
    legs = legs_of(accepted, asked.group)
    if legs is None:
        raise Refused("The reports of this run are not under masks.")
    if isinstance(asked, Prepare):
        return legs.setup(asked.round), f"Gave its setup for round {asked.round + 1}."
    folder = layout.run_folder(accepted.site, asked.run)
    report, signed = Slot(folder, asked.round), Slot(folder / f"{SIGNED}{asked.group}", asked.round)
    survivors, signatures = read_list(body)
    question = listed(survivors)
    slot = signed if isinstance(asked, Sign) else Slot(folder / f"{UNMASKED}{asked.group}", asked.round)
    if (kept := replies.find(slot, question)) is not None:
        return kept.raw, "Sent the kept answer again."
    if not report.file(ANSWER).exists() or not report.file(JOINED).exists():
        raise Refused(f"This site has no report of round {asked.round + 1} to help with.")
    joined = legs.noted(asked.round, report.file(JOINED))
    if isinstance(asked, Sign):
        raw, text = (
            joined.agree(survivors),
            f"Signed the list of {len(survivors)} survivors of round {asked.round + 1}.",
        )
    else:
        raw = shares_to_bytes(joined.unmask(survivors, signatures))
        text = f"Gave its shares of the masks in the sum of round {asked.round + 1}."
    replies.bind(accepted, signed, question)  # one list, whichever leg comes first
    replies.bind(accepted, slot, question)
    if accepted.ledger is not None:
        accepted.ledger.release(f"list of {asked.group}, round {asked.round + 1}", question_hash(question).hex())
    return replies.keep(slot, question, raw).raw, text
