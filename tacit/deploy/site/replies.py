"""The reply store: one question, one answer. This file is where a second vector for one charge is stopped.

    accept -> Accepted   bind -> Bound   pay -> Paid   train -> reply   keep -> Kept

A question is bound on disk, then charged on disk, then trained, then its answer kept on disk, then sent. Each step takes what the
step before it made; only `keep` and `find` make what may leave."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tacit import store
from tacit.deploy.site import layout
from tacit.deploy.site.layout import ANSWER, QUESTION, round_file, round_files, round_of
from tacit.errors import Refused

if TYPE_CHECKING:
    from tacit.deploy.site.accept import Accepted

HASH_BYTES = 32  # SHA-256 of the question, in front of the answer


@dataclass(frozen=True)
class Slot:
    """What has one question and one answer: a round of a run, its opening of a group's sum, or a query (`called`)."""

    folder: Path
    round: int
    called: str = ""

    def __str__(self) -> str:
        return self.called or f"Round {self.round + 1}"


@dataclass(frozen=True, eq=False)
class Bound:
    """A question that is its slot's own, on disk: `bind` makes it, and nothing else can be paid."""

    accepted: "Accepted"
    slot: Slot
    question: bytes = field(repr=False)


@dataclass(frozen=True)
class Kept:
    """An answer that is on disk, so it may be sent: `keep` and `find` make it."""

    raw: bytes = field(repr=False)


def question_hash(question: bytes) -> bytes:
    """The SHA-256 that stands for a question on disk: all of its bytes, so one changed parameter is another question."""
    return hashlib.sha256(question).digest()


def find(slot: Slot, question: bytes) -> Kept | None:
    """The answer that was kept for this question, or None where the slot is still to be answered.

    Guarantee: what is returned are the bytes that `keep` was given for a question of the same hash; nothing on disk changes.

    Raises: Refused where another question was answered, or a later round was asked or answered already: rounds only go forward.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     slot = Slot(Path(name), 3)
    ...     _ = keep(slot, b"question", b"answer")
    ...     find(slot, b"question").raw
    b'answer'
    """
    answered, asked = round_files(slot.folder, ANSWER), round_files(slot.folder, QUESTION)
    newest = max((round_of(path) for path in (*answered[-1:], *asked[-1:])), default=-1)
    if slot.round < newest:
        raise Refused(f"The server asks for round {slot.round + 1} again, but round {newest + 1} has begun already.")
    if not answered or slot.round > round_of(answered[-1]):
        return None
    content = answered[-1].read_bytes()
    if content[:HASH_BYTES] != question_hash(question):
        raise Refused(f"{slot} was answered already: another answer to it would be a second release.")
    return Kept(content[HASH_BYTES:])


def bind(accepted: "Accepted", slot: Slot, question: bytes) -> Bound:
    """Makes the question the slot's own, on disk.

    Guarantee: on return its hash has reached the disk, and of two questions at once one is bound and the other refused; a crash at
    any later moment leaves the slot bound. Assumes: `find` let it pass. Raises: Refused where another question is the slot's own.
    """
    path = round_file(layout.make_folder(slot.folder), slot.round, QUESTION)
    if not store.create(path, question_hash(question)) and path.read_bytes() != question_hash(question):
        one = "one query" if slot.called else "one round"
        raise Refused(f"{slot} was asked with other parameters before: {one} is one question.")
    return Bound(accepted, slot, question)


def keep(slot: Slot, question: bytes, answer: bytes) -> Kept:
    """Puts the answer on disk, then deletes what belongs to earlier rounds.

    Guarantee: on return the answer has reached the disk, so it may be sent; a crash leaves all of it or none of it. It is deleted
    only after an answer to a later round is on disk. Assumes: it was paid for. Raises: OSError, and then nothing may be sent.
    """
    layout.write(round_file(slot.folder, slot.round, ANSWER), question_hash(question) + answer)
    for path in round_files(slot.folder):
        if round_of(path) < slot.round:
            path.unlink(missing_ok=True)
    return Kept(answer)
