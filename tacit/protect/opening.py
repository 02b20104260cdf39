"""How a server, which has no key, gets a sum opened: by one holder of the key, or by `threshold` holders of its shares.

`Alone` and `Together` are for a process that is all parties; a deployment asks its sites instead
(tacit/federation/flower/remote_opening.py). Every holder checks and adds the reports itself and writes the round down on its
own disk before it answers, in one process as elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gmpy2 import mpz

from tacit.errors import BadCiphertext
from tacit.protect.envelope import RoundContext
from tacit.protect.holder import Opener
from tacit.protect.inbox import inbox_of
from tacit.protect.octets import from_octets, to_octets
from tacit.protect.paillier import PublicKey
from tacit.protect.threshold import Partial, Verification, combine


@dataclass(frozen=True)
class Opened:
    """An opened sum: its numbers, and whose reports are in it.

    `asked_bytes` and `answered_bytes` are what question and answers weigh on the wire; `left_out` names holders whose answer
    was wrong, with the reason, where the others were enough.
    """

    numbers: list[mpz] = field(repr=False)
    clients: list[str]
    asked_bytes: int
    answered_bytes: int
    left_out: Mapping[str, str] = field(default_factory=dict)


class Opens(Protocol):
    """Whoever opens sums for the server, which learns the sum and no single report."""

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """The sum of these reports, which the server has checked (`Inbox`) and the holders check again.

        Raises: TooFewReports, OpeningRefused or another TacitError that says why not.
        """
        ...


@dataclass(frozen=True)
class Alone:
    """One holder of the whole key, which could read single reports: what it opens is bounded by its `Opener` alone."""

    holder: Opener[list[mpz]]

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks the one holder. Raises: what `Opener.open` and the key raise."""
        numbers, clients = self.holder.open(context, messages)
        return Opened(numbers, clients, total_bytes(messages), len(numbers_to_bytes(context.public, numbers)))


@dataclass(frozen=True)
class Together:
    """As many holders of shares as are needed, each with its own `Opener`."""

    verification: Verification
    holders: Sequence[Opener[Partial]]

    def open(self, context: RoundContext, messages: Sequence[bytes]) -> Opened:
        """Asks every holder for its part and joins them.

        Raises: what `Opener.open` and `threshold.combine` raise. Here all holders are one process, so a wrong part is a fault
        and nobody is left out.
        """
        inbox = inbox_of(context, messages)
        total = inbox.total(at_least=min(holder.at_least for holder in self.holders))
        partials = [holder.open(context, messages)[0] for holder in self.holders]
        answered = sum(len(self.verification.to_bytes(partial)) for partial in partials)
        numbers = combine(self.verification, total, partials)
        return Opened(numbers, inbox.complete(), total_bytes(messages) * len(self.holders), answered)


def total_bytes(messages: Sequence[bytes]) -> int:
    """The length of all messages."""
    return sum(len(raw) for raw in messages)


def numbers_to_bytes(public: PublicKey, numbers: Sequence[mpz]) -> bytes:
    """Opened numbers for the wire, of one width: the length says how many there are and nothing else.

    The width has room for n itself, which stands for a ciphertext that opens to nothing (`SecretKey.open_any`).
    """
    return to_octets(numbers, width=_width(public))


def numbers_from_bytes(public: PublicKey, raw: bytes, *, count: int) -> list[mpz]:
    """What `numbers_to_bytes` wrote.

    The numbers may be any of that width: who asked refuses what is out of range (`Lanes.unpack`).

    Raises: BadCiphertext where it is not `count` numbers.
    """
    width = _width(public)
    if len(raw) != count * width:
        raise BadCiphertext(f"{len(raw)} bytes came where {count} opened numbers of {width} bytes belong.")
    return from_octets(raw, width=width)


def _width(public: PublicKey) -> int:
    return (public.bits + 7) // 8
