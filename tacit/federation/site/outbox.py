"""One round, one question, one answer: this file is where a second vector for one charge is stopped.

Before anything is charged or trained, the hash of the question is on disk as the round's own (`bind`); another question for it
is refused, for ever. An answer is kept before it is sent, so a question that comes again (a broken line, a restarted server, a
second server with the same run, a late message) gets the very same bytes and costs nothing. If the site was killed before it
could keep an answer, the same question is a new attempt and is charged again, unless its noise is a function of it (seeded).

`folder` is a run's folder, or the one where a run keeps its parts of openings, or a query (`layout`). What a refusal calls the
question is `called`: its round, unless said.
"""

import hashlib
from pathlib import Path

from tacit.errors import Refused
from tacit.federation.site import store
from tacit.federation.site.layout import ANSWER, QUESTION, round_file, round_files, round_of

HASH_BYTES = 32  # SHA-256 of the question, in front of the answer


def question_hash(question: bytes) -> bytes:
    """The SHA-256 that stands for a question on disk: all of its bytes, so one changed parameter is another question."""
    return hashlib.sha256(question).digest()


def find(folder: Path, round: int, question: bytes, *, called: str = "") -> bytes | None:
    """The answer that was kept for this question, or None where the round is still to be answered.

    Guarantee: what is returned are the bytes that `keep` was given for a question of the same hash; nothing on disk changes.

    Raises: Refused where the round was answered to another question, or a later round was asked or answered already: rounds
    only go forward, so no answer to an earlier one can be had again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     keep(Path(name), 3, b"question", b"answer")
    ...     find(Path(name), 3, b"question")
    b'answer'
    """
    answered, asked = round_files(folder, ANSWER), round_files(folder, QUESTION)
    newest = max((round_of(path) for path in (*answered[-1:], *asked[-1:])), default=-1)
    if round < newest:
        raise Refused(f"The server asks for round {round + 1} again, but round {newest + 1} has begun already.")
    if not answered or round > round_of(answered[-1]):
        return None
    content = answered[-1].read_bytes()
    if content[:HASH_BYTES] != question_hash(question):
        called = called or f"Round {round + 1}"
        raise Refused(f"{called} was answered already: another answer to it would be a second release.")
    return content[HASH_BYTES:]


def bind(folder: Path, round: int, question: bytes, *, called: str = "") -> bool:
    """Makes the question the round's own, on disk; whether it is so for the first time.

    Guarantee: on return its hash has reached the disk, and of two questions at once one is bound and the other refused. It is
    called before the ledger is charged, so a crash at any later moment leaves the round bound.

    Assumes: `find` let the round pass, and the run's folder exists.

    Raises: Refused where another question is the round's own, answered or not; OSError where the disk does not take it.
    """
    path = round_file(folder, round, QUESTION)
    if store.create(path, question_hash(question)):
        return True
    if path.read_bytes() != question_hash(question):
        named, one = (called, "one query") if called else (f"Round {round + 1}", "one round")
        raise Refused(f"{named} was asked with other parameters before: {one} is one question.")
    return False


def keep(folder: Path, round: int, question: bytes, answer: bytes) -> None:
    """Puts the answer on disk, then deletes what belongs to earlier rounds.

    Guarantee: on return the answer has reached the disk, so it may be sent; a crash leaves all of it or none of it. It is deleted
    only after an answer to a later round is on disk.

    Assumes: the answer was paid for. Raises: OSError where the disk does not take it, and then nothing may be sent.
    """
    store.write(round_file(folder, round, ANSWER), question_hash(question) + answer)
    for path in round_files(folder):
        if round_of(path) < round:
            path.unlink(missing_ok=True)
