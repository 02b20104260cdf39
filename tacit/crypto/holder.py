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
= share.open`) every holder answers, and more than half of them are needed, so two sums of one round need a common holder."""

import datetime
import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from gmpy2 import mpz

from tacit import check
from tacit.crypto.envelope import RoundContext, SignedHeader, check_body, check_header, parse
from tacit.crypto.paillier import PublicKey, from_octets, to_octets
from tacit.crypto.proofs import unproved
from tacit.crypto.threshold import Partial, Verification, combine
from tacit.errors import BadCiphertext, BadInput, BadSignature, Duplicate, MessageRefused, OpeningRefused, TooFewReports

# The reports of one round as they come in: what is checked when, and who counts.


class Inbox:
    """The reports of one round, for whoever adds them up.

    Guarantee: whoever counts (`complete`), and whose ciphertexts are in `total`, is a member, has sent all its chunks, signed
    and for this round, and a proof that held. A refused message leaves the others as they are.
    """

    def __init__(self, context: RoundContext):
        self.context = context
        self._chunks: dict[str, dict[int, list[mpz]]] = {}
        self._proofs: dict[str, bytes] = {}
        self._proved: set[str] = set()

    def accept(self, raw: bytes) -> SignedHeader:
        """Takes one message, in any order; `settle` checks its proof. Raises: MessageRefused, also for a chunk that is there."""
        signed, body = parse(raw)
        header = signed.header
        check_header(self.context, signed)
        if header.chunk in self._chunks.get(header.client, {}):
            raise Duplicate(f"The report of {header.client!r} is refused: chunk {header.chunk} has been received.")
        ciphertexts, proof = check_body(self.context, header, body)
        self._chunks.setdefault(header.client, {})[header.chunk] = ciphertexts
        if proof:
            self._proofs[header.client] = proof
        return signed

    def accept_report(self, client: str, messages: Sequence[bytes]) -> None:
        """Takes the messages of one client's report; if one is refused, none stays. A report that lacks chunks never counts.

        Raises: Duplicate if anything of this client is there, BadSignature for another client's name, and what `accept` raises.
        """
        if client in self._chunks:
            raise Duplicate(f"The report of {client!r} is refused: one has been received.")
        for raw in messages:
            signed = parse(raw)[0].header.client
            if signed != client:
                raise BadSignature(f"The report of {client!r} is refused: it is written in the name of {signed!r}.")
        try:
            for raw in messages:
                self.accept(raw)
        except MessageRefused:
            self._forget(client)
            raise

    def settle(self) -> dict[str, MessageRefused]:
        """Checks the proofs of all complete reports that are new, together; returns the refusals of those that do not hold.

        Guarantee: an honest client is never refused for what another one sent. Whoever is refused is forgotten and may send again.
        """
        whole = [name for name, chunks in self._chunks.items() if len(chunks) == len(self.context.chunk_sizes)]
        new = [name for name in whole if name not in self._proved]
        refused = unproved(
            {name: (self.context.claim(name, self._row(name)), self._proofs.pop(name, b"")) for name in new}
        )
        for name in refused:
            self._forget(name)
        self._proved.update(name for name in new if name not in refused)
        return dict(refused)

    def _forget(self, client: str) -> None:
        self._chunks.pop(client, None)
        self._proofs.pop(client, None)
        self._proved.discard(client)

    def _row(self, client: str) -> list[mpz]:
        parts = self._chunks[client]
        return [c for chunk in sorted(parts) for c in parts[chunk]]

    def complete(self) -> list[str]:
        """The clients that counted at the last `settle`, in order of their names."""
        return sorted(self._proved)

    def total(self, *, at_least: int) -> list[mpz]:
        """Ciphertexts of the sum of all reports that `complete` names, multiplied here. Raises: TooFewReports below `at_least`."""
        clients = self.complete()
        refuse_few(clients, at_least=at_least)
        return self.context.public.add(map(self._row, clients))


def refuse_few(clients: Sequence[str], *, at_least: int) -> None:
    """Refuses a round whose sum would carry less noise than was promised. Raises: TooFewReports."""
    if len(clients) < at_least:
        raise TooFewReports(f"{len(clients)} whole reports arrived and {at_least} are needed: the round is not opened.")


def inbox_of(context: RoundContext, messages: Sequence[bytes]) -> Inbox:
    """The inbox of reports that must all be in order and proved: holders open nothing as soon as one thing is wrong.

    A report that lacks chunks is no error here; it does not count. Raises: the first MessageRefused.
    """
    inbox = Inbox(context)
    for raw in messages:
        inbox.accept(raw)
    for error in inbox.settle().values():
        raise error
    return inbox


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

    Guarantee: never two holders for one round. Whoever names the run can favour a holder: no defence against one that helps it.
    """
    digest = hashlib.sha256(f"tacit turn {run} {round}".encode()).digest()
    return sorted(turns)[int.from_bytes(digest, "big") % len(turns)]


class Opener(Generic[T]):
    """Opens at most one sum of a round, of at least `at_least` reports, with `open_with` (a secret key's or a share's).

    Guarantee: before `open_with` is called, run, round, key and a hash of the sum are on disk (SQLite, synchronous=FULL).
    Another sum of the round is refused from then on, by every process that uses the same file and after a crash; the same sum
    is opened again. Nothing is written for what is refused.
    Assumes: the file is neither deleted nor replaced by an older copy, and nobody else uses the key or share with another file.
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
        Raises: MessageRefused, TooFewReports, or OpeningRefused (another sum, another's turn, no disk). Nothing is opened then.
        """
        inbox = inbox_of(context, messages)
        total, clients = inbox.total(at_least=self.at_least), inbox.complete()
        turn = whose_turn(self.turns, run=context.run, round=context.round) if self.turns else self.name
        if turn != self.name:
            raise OpeningRefused(f"Round {context.round + 1} is opened by {turn!r}, not by {self.name!r}: ask there.")
        self._record(context, total, clients)
        return self._open_with(total), clients

    def close(self) -> None:
        """Closes the file; every opening was on disk before it was made."""
        self._db.close()

    def _record(self, context: RoundContext, total: list[mpz], clients: list[str]) -> None:
        digest = hashlib.sha256(context.public.to_bytes(total)).hexdigest()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        row = (context.run, context.round, context.public.id, len(clients), digest, now)
        try:
            self._db.execute("INSERT INTO openings VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            query = "SELECT key, sha256 FROM openings WHERE run = ? AND round = ?"
            if self._db.execute(query, (context.run, context.round)).fetchone() == (context.public.id, digest):
                return
            text = f"Another sum of round {context.round + 1} of run {context.run} has been opened"
            raise OpeningRefused(f"{text}: a second could give away a single update, so start a new round.") from error
        except sqlite3.Error as error:
            raise OpeningRefused(f"The openings {self.path} cannot be kept ({error}); nothing was opened.") from error


# How a server, which has no key, gets a sum opened: by one holder of the key, or by `threshold` holders of its shares.


@dataclass(frozen=True)
class Opened:
    """An opened sum: its numbers, whose reports are in it, and what question and answers weigh on the wire.

    `left_out` names holders whose answer was wrong, with the reason, where the others were enough.
    """

    numbers: list[mpz] = field(repr=False)
    clients: list[str]
    asked_bytes: int
    answered_bytes: int
    left_out: Mapping[str, str] = field(default_factory=dict)


class Opens(Protocol):
    """Whoever opens sums for the server, which learns the sum and no single report."""

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """The sum of these reports, which the server has checked (`Inbox`) and the holders check again. Raises: a TacitError."""
        ...


@dataclass(frozen=True)
class Alone:
    """One holder of the whole key, which could read single reports: what it opens is bounded by its `Opener` alone."""

    holder: Opener[list[mpz]]

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        numbers, clients = self.holder.open(context, messages)
        return Opened(numbers, clients, total_bytes(messages), len(numbers_to_bytes(context.public, numbers)))


@dataclass(frozen=True)
class Together:
    """As many holders of shares as are needed, each with its own `Opener`."""

    verification: Verification
    holders: Sequence[Opener[Partial]]

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks every holder for its part and joins them. Raises: what `Opener.open` and `threshold.combine` raise."""
        inbox = inbox_of(context, messages)
        total = inbox.total(at_least=min(holder.at_least for holder in self.holders))
        partials = [holder.open(context, messages)[0] for holder in self.holders]
        answered = sum(len(self.verification.to_bytes(partial)) for partial in partials)
        numbers = combine(self.verification, total, partials)
        return Opened(numbers, inbox.complete(), total_bytes(messages) * len(self.holders), answered)


def total_bytes(messages: Sequence[bytes]) -> int:
    return sum(len(raw) for raw in messages)


def numbers_to_bytes(public: PublicKey, numbers: Sequence[mpz]) -> bytes:
    """Opened numbers for the wire, of one width, with room for n, which stands for what opens to nothing (`SecretKey.open_any`)."""
    return to_octets(numbers, width=_width(public))


def numbers_from_bytes(public: PublicKey, raw: bytes, *, count: int) -> list[mpz]:
    """What `numbers_to_bytes` wrote; who asked refuses what is out of range (`Lanes.unpack`). Raises: BadCiphertext."""
    width = _width(public)
    if len(raw) != count * width:
        raise BadCiphertext(f"{len(raw)} bytes came where {count} opened numbers of {width} bytes belong.")
    return from_octets(raw, width=width)


def _width(public: PublicKey) -> int:
    return (public.bits + 7) // 8
