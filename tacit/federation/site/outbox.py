"""One round, one question, one answer: this file is where a second vector for one charge is stopped.

Before anything is charged or trained, the hash of the question is on disk as the round's own (`bind`); another question for it
is refused, for ever. An answer is kept before it is sent, so a question that comes again (a broken line, a restarted server, a
second server with the same run, a late message) gets the very same bytes and costs nothing. If the site was killed before it
could keep an answer, the same question is a new attempt and is charged again, unless its noise is a function of it (seeded).
"""

import hashlib
from pathlib import Path

from tacit.errors import Refused
from tacit.federation.site import store

MARK_BYTES = 32  # SHA-256 of the question, in front of the answer


def mark(question: bytes) -> bytes:
    """The hash that stands for a question."""
    return hashlib.sha256(question).digest()


def find(place: Path, round: int, question: bytes) -> bytes | None:
    """The kept answer to this question, or None if the round is still open. Raises Refused for a second question."""
    last = _last(place, "answer")
    newest = max((_round(path) for path in (last, _last(place, "question")) if path), default=-1)
    if round < newest:
        raise Refused(f"The server asks for round {round} again, but round {newest} has begun already.")
    if last is None or round > _round(last):
        return None
    content = last.read_bytes()
    if content[:MARK_BYTES] != mark(question):
        raise Refused(f"Round {round} was answered already: another answer to it would be a second release.")
    return content[MARK_BYTES:]


def bind(place: Path, round: int, question: bytes) -> bool:
    """Makes the question the round's own, on disk; whether it is so for the first time. Raises Refused if another one is."""
    path = place / f"round-{round:07d}.question"
    if store.create(path, mark(question)):
        return True
    if path.read_bytes() != mark(question):
        raise Refused(f"Round {round} was asked with other parameters before: one round is one question.")
    return False


def keep(place: Path, round: int, question: bytes, answer: bytes) -> None:
    """Puts the answer on disk, then lets what belongs to earlier rounds go."""
    store.write(place / f"round-{round:07d}.answer", mark(question) + answer)
    for path in place.glob("round-*"):
        if _round(path) < round:
            path.unlink(missing_ok=True)


def answered(place: Path) -> int | None:
    """The last round that was answered here, and so paid for before; None where there is none."""
    last = _last(place, "answer")
    return None if last is None else _round(last)


def _last(place: Path, kind: str) -> Path | None:
    return max(place.glob(f"round-*.{kind}"), key=_round, default=None)


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))
