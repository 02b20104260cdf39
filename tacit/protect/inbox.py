"""The reports of one round as they come in: what is checked when, and who counts.

Each message is checked when it arrives (`envelope`), the proofs of all complete reports together when they are counted
(`proved`), because one equation for all is cheaper than one for each. Server and holders of a key both use it: whoever adds
reports has checked them itself.
"""

from collections.abc import Sequence

from gmpy2 import mpz

from tacit.errors import BadSignature, Duplicate, MessageRefused, TooFewReports
from tacit.protect.envelope import RoundContext, SignedHeader, check_body, check_header, parse
from tacit.protect.proved import unproved


class Inbox:
    """The reports of one round, for whoever adds them up.

    Guarantee: whoever counts (`complete`), and whose ciphertexts are in `total`, is a member, has sent all its chunks, signed
    and for this round, and a proof that held. A refused message leaves the others as they are, and a client whose proof
    failed may send its report again.
    """

    def __init__(self, context: RoundContext):
        self.context = context
        self._chunks: dict[str, dict[int, list[mpz]]] = {}
        self._proofs: dict[str, bytes] = {}
        self._proved: set[str] = set()

    def accept(self, raw: bytes) -> SignedHeader:
        """Takes one message, in any order; its proof is checked by `settle`.

        Raises: what `parse`, `check_header` and `check_body` raise, and Duplicate for a chunk that is there already, all of
        them a MessageRefused. The messages taken before stay.
        """
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
        """Takes the messages of one client's report; if one of them is refused, none of them stays.

        A report that lacks chunks is taken and never counts: the caller says how many there must be.

        Raises: Duplicate if anything of this client is there already, BadSignature if a message is in another client's name,
        and what `accept` raises.
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

        Guarantee: an honest client is never refused for what another one sent. Whoever is refused is forgotten; it counts as
        if it had sent nothing.
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
        """Ciphertexts of the sum of all reports that `complete` names: multiplied here, nobody's word for a product is taken.

        Raises: TooFewReports if there are fewer than `at_least`.
        """
        clients = self.complete()
        refuse_few(clients, at_least=at_least)
        return self.context.public.add(map(self._row, clients))


def refuse_few(clients: Sequence[str], *, at_least: int) -> None:
    """Refuses a round with fewer than `at_least` complete reports, whose sum would carry less noise than was promised.

    Raises: TooFewReports.
    """
    if len(clients) < at_least:
        raise TooFewReports(f"{len(clients)} whole reports arrived and {at_least} are needed: the round is not opened.")


def inbox_of(context: RoundContext, messages: Sequence[bytes]) -> Inbox:
    """The inbox of reports that must all be in order and proved: for holders, who open nothing as soon as one thing is wrong.

    A report that lacks chunks is no error here; it does not count.

    Raises: the MessageRefused of the first message, or the first proof, that is not in order.
    """
    inbox = Inbox(context)
    for raw in messages:
        inbox.accept(raw)
    for error in inbox.settle().values():
        raise error
    return inbox
