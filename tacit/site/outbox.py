"""The last answer of a run, kept on disk before it is sent.

A question that comes again, because a line broke or the server was restarted, gets the very same bytes: nothing new is
released and nothing is charged. Another question for a round that was answered would be a second release, and is refused.
"""

import hashlib
from pathlib import Path

from tacit.engine.folder import replace
from tacit.errors import Refused

MARK_BYTES = 32  # SHA-256 of the question, in front of the answer


def find(place: Path, round: int, question: bytes) -> bytes | None:
    """The kept answer to this question, or None if the round is still open. Raises Refused for a second opening."""
    last = _last(place)
    if last is None or round > _round(last):
        return None
    if round < _round(last):
        raise Refused(f"The server asks for round {round} again, but round {_round(last)} was answered already.")
    content = last.read_bytes()
    if content[:MARK_BYTES] != hashlib.sha256(question).digest():
        raise Refused(f"Round {round} was answered already: another answer to it would be a second release.")
    return content[MARK_BYTES:]


def keep(place: Path, round: int, question: bytes, answer: bytes) -> None:
    """Puts the answer on disk, then lets the one before it go."""
    last = _last(place)
    replace(place / f"round-{round:06d}.answer", hashlib.sha256(question).digest() + answer)
    if last is not None and _round(last) != round:
        last.unlink()


def _last(place: Path) -> Path | None:
    return max(place.glob("round-*.answer"), default=None)


def _round(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))
