"""The opener: the clients' side, which turns one sum per round into numbers, and nothing else.

A secret key opens single updates as well as sums, so what stands between a server and one client's update is this file.
It opens a total only after it has
- checked the signatures of at least `at_least` distinct members' whole reports for this round, run, key and roster, and each
  sender's proof that it knows what it sealed;
- multiplied the ciphertexts of these reports itself: a server's word for a product is never taken;
- written to disk, synchronously, which sum of the round is opened: another one is refused, after a restart as well. The same
  ciphertexts again say nothing new, so a holder that was killed while it opened them can be asked again.

Where several members hold the whole key, only one may open in a round, or a server could have two of them open sums that
differ by one report: `turns` lists them, and a hash of run and round says whose turn it is. With shares of a key (`open_with
= share.open`) every holder answers, and more than half of them are needed, so two sums of one round need a common holder.
"""

import datetime
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from gmpy2 import mpz

from tacit import check
from tacit.errors import BadInput, OpeningRefused
from tacit.protect.envelope import RoundContext
from tacit.protect.inbox import inbox_of

T = TypeVar("T")
SCHEMA = """
CREATE TABLE IF NOT EXISTS openings (
    run TEXT NOT NULL, round INTEGER NOT NULL, key TEXT NOT NULL, clients INTEGER NOT NULL, sha256 TEXT NOT NULL,
    time TEXT NOT NULL, PRIMARY KEY (run, round)
);
"""
BUSY_SECONDS = 30  # how long a second opener on the same file waits for its turn


def whose_turn(turns: Sequence[str], *, run: str, round: int) -> str:
    """The member that opens this round: a hash of run and round among the sorted names, so everybody computes the same one.

    Guarantee: never two holders for one round. Whoever names the run can favour a holder, so turns are no defence against one
    that helps the server.

    Assumes: at least one name.

    >>> whose_turn(["coast", "north"], run="r", round=0) in ("coast", "north")
    True
    """
    digest = hashlib.sha256(f"tacit turn {run} {round}".encode()).digest()
    return sorted(turns)[int.from_bytes(digest, "big") % len(turns)]


class Opener(Generic[T]):
    """Opens at most one sum of a round, of at least `at_least` reports, with `open_with` (a secret key's or a share's).

    Guarantee: before `open_with` is called, run, round, key and a hash of the sum are on disk (SQLite, synchronous=FULL).
    Another sum of the round is refused from then on, by every process that uses the same file and after a crash; the same sum
    is opened again. Nothing is written for what is refused.

    Assumes: the file is neither deleted nor replaced by an older copy, and nobody else uses the same key or share with
    another file.

    Raises: BadInput for `at_least` below 2 or a name that is not among the turns, OpeningRefused if the file cannot be kept.
    """

    def __init__(
        self,
        path: Path | str,
        open_with: Callable[[list[mpz]], T],
        *,
        at_least: int,
        name: str = "",
        turns: Sequence[str] = (),
    ):
        check.at_least(2, at_least=at_least)
        if turns and name not in turns:
            raise BadInput(f"{name!r} is not among the openers {', '.join(sorted(turns))}.")
        self.path, self.at_least, self.name, self.turns = Path(path), at_least, name, tuple(turns)
        self._open_with = open_with
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_SECONDS)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise OpeningRefused(f"The openings {self.path} cannot be kept ({error}); nothing was opened.") from error

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> tuple[T, list[str]]:
        """Opens the sum of the reports it is shown, and says whose they are. Withstands a server that lies.

        Assumes: `context` is the holder's own knowledge of run, round, key, roster and members, not the server's.

        Raises: MessageRefused for a report that is not in order, TooFewReports, or OpeningRefused: another sum of this round
        was opened, it is another's turn, or the opening cannot be written down. In each case nothing is opened.
        """
        inbox = inbox_of(context, messages)
        total, clients = inbox.total(at_least=self.at_least), inbox.complete()
        return self._open(context, total, clients), clients

    def close(self) -> None:
        """Closes the file; nothing is pending, because every opening was on disk before it was made."""
        self._db.close()

    def _open(self, context: RoundContext, total: list[mpz], clients: list[str]) -> T:
        if self.turns:
            turn = whose_turn(self.turns, run=context.run, round=context.round)
            if turn != self.name:
                raise OpeningRefused(
                    f"Round {context.round + 1} is opened by {turn!r}, not by {self.name!r}: ask there."
                )
        self._record(context, total, clients)
        return self._open_with(total)

    def _record(self, context: RoundContext, total: list[mpz], clients: list[str]) -> None:
        digest = hashlib.sha256(context.public.to_bytes(total)).hexdigest()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        row = (context.run, context.round, context.public.id, len(clients), digest, now)
        try:
            self._db.execute("INSERT INTO openings VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            if self._opened(context) == (context.public.id, digest):
                return
            text = f"Another sum of round {context.round + 1} of run {context.run} has been opened"
            raise OpeningRefused(f"{text}: a second could give away a single update, so start a new round.") from error
        except sqlite3.Error as error:
            raise OpeningRefused(f"The openings {self.path} cannot be kept ({error}); nothing was opened.") from error

    def _opened(self, context: RoundContext) -> tuple[str, str]:
        """Key and digest of the round's sum that is on disk as opened."""
        query = "SELECT key, sha256 FROM openings WHERE run = ? AND round = ?"
        return self._db.execute(query, (context.run, context.round)).fetchone()
