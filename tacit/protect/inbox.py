"""The reports of one round as they come in: what is checked when, and who counts."""

from collections.abc import Sequence

from gmpy2 import mpz

from tacit.errors import BadSignature, Duplicate, MessageRefused, TooFewReports
from tacit.protect.envelope import RoundContext, SignedHeader, check_body, check_header, parse
from tacit.protect.proved import unproved


class Inbox:
    """The reports of one round, each checked when it comes in, and the proofs of all that are whole when they are counted.

    Guarantee: whoever counts, and whose ciphertexts are in `total`, has sent all its chunks and a proof that held.
    """

    def __init__(self, context: RoundContext):
        self.context = context
        self._chunks: dict[str, dict[int, list[mpz]]] = {}
        self._proofs: dict[str, bytes] = {}
        self._proved: set[str] = set()

    def accept(self, raw: bytes) -> SignedHeader:
        """Takes one message. Raises a MessageRefused; the messages taken before stay. Its proof is checked by `settle`."""
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
        """Takes the whole report of a client, or nothing of it. Raises a MessageRefused."""
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
        """Checks the proofs of all whole reports that are new, together. Forgets who has none that holds, and says why."""
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
        """The clients whose whole report was there, with a proof that held, at the last `settle`, in order of their names."""
        return sorted(self._proved)

    def total(self, *, at_least: int) -> list[mpz]:
        """Ciphertexts of the sum of all reports that `complete` names. Raises TooFewReports."""
        clients = self.complete()
        refuse_few(clients, at_least=at_least)
        return self.context.public.add(map(self._row, clients))


def refuse_few(clients: Sequence[str], *, at_least: int) -> None:
    """Raises TooFewReports."""
    if len(clients) < at_least:
        raise TooFewReports(f"{len(clients)} whole reports arrived and {at_least} are needed: the round is not opened.")


def inbox_of(context: RoundContext, messages: Sequence[bytes]) -> Inbox:
    """The reports, all of them in order and proved. Raises MessageRefused, for the first that is not."""
    inbox = Inbox(context)
    for raw in messages:
        inbox.accept(raw)
    for error in inbox.settle().values():
        raise error
    return inbox
