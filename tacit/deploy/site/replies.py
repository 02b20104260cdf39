"""How a site's files are written: for its owner alone, whole or not at all, and by one process at a time.

Folders have mode 0700 and files 0600 whatever the umask: kept answers of central DP carry no noise, and logs name the site's
data. What lies where is `layout`'s."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tacit import store
from tacit.deploy.site.layout import ANSWER, LOCK, QUESTION, round_file, round_files, round_of
from tacit.errors import Refused
from tacit.machine import locked

FOLDER, FILE = 0o700, store.OWNER
OTHERS = 0o077

write = partial(store.write, mode=FILE, sync_name=True)
create, append = store.create, store.append


def make_folder(path: Path) -> Path:
    """Makes a folder, and those above it that are missing, for the owner alone, and returns it; one that stands is left as it is.

    Guarantee: on return the new names have reached the disk, so that what is written into the folder cannot be lost with it.

    Raises: OSError.
    """
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(mode=FOLDER, exist_ok=True)
            folder.chmod(FOLDER)
            store.sync(folder.parent)
    return path


def tighten(folder: Path) -> None:
    """Takes from group and others whatever they could do with a site's folder and what lies in it.

    Links are left alone; so is what belongs to another user, without an error.
    """
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if not path.is_symlink() and mode & OTHERS:
                path.chmod(mode & ~OTHERS & 0o7777)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process answers for the folder, and keeps others waiting until it is left.

    Guarantee: between processes and between threads one is inside at a time; the lock of one that was killed is free at once.
    It is advisory (flock): it holds back who asks for it. Raises: OSError where the lock's file cannot be opened.
    """
    file = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, FILE)
    try:
        with locked(file):
            yield
    finally:
        os.close(file)


# One round, one question, one answer: this file is where a second vector for one charge is stopped.

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
    if create(path, question_hash(question)):
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
    write(round_file(folder, round, ANSWER), question_hash(question) + answer)
    for path in round_files(folder):
        if round_of(path) < round:
            path.unlink(missing_ok=True)
