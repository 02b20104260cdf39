"""What crosses the wire under masks, and what a site holds of a round: its seeds, and the others' shares, on its disk.

The server asks for a report with everybody's setups around the question (`framed`). What a site has joined is on disk before it
trains, so that one that was killed still signs and gives its shares (`legs`)."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from tacit import store, wire
from tacit.crypto.masked import SETUP
from tacit.crypto.masks import SEED_BYTES, SHARE_BYTES, Adding, Attempt, Joined, Party, Roster, Setup
from tacit.crypto.reports import SIGNATURE_BYTES, Opened, Signer
from tacit.crypto.seal import report_bytes
from tacit.deploy.site import layout
from tacit.deploy.site.requests import MOST_SITES
from tacit.errors import BadInput, MessageRefused, Refused
from tacit.types import Message
from tacit.wire import pack, unpack

QUESTION = "question"


# What crosses the wire, in both directions.


def framed(question: bytes, setups: Mapping[str, Mapping[str, Setup]], rosters: Mapping[str, Roster]) -> bytes:
    """A round's question with the setups of its participants, by group."""
    tensors, names = {QUESTION: octets(question)}, dict[str, list[str]]()
    for group, known in setups.items():
        names[group] = sorted(known)
        rows = [octets(known[name].row(rosters[group])) for name in names[group]]
        tensors[f"{SETUP}-{group}"] = torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.uint8)
    return pack(Message("server", tensors, names))


def parted(body: bytes, group: str, roster: Roster) -> tuple[bytes, dict[str, Setup]]:
    """The question and a group's setups, of which nothing is verified yet. Raises: BadInput, MessageRefused for what is none."""
    message = unpack(body)
    question, rows = message.tensors.get(QUESTION), message.tensors.get(f"{SETUP}-{group}")
    if question is None or rows is None or rows.dim() != 2 or rows.dtype != torch.uint8:
        raise BadInput("The question does not come with the setups of its round.")
    names = names_of(message.facts.get(group))
    if len(names) != len(rows):
        raise BadInput("The setups are not those of as many names.")
    return report_bytes(question), {
        name: Setup.of(name, row.numpy().tobytes(), roster) for name, row in zip(names, rows, strict=True)
    }


def listed(survivors: Sequence[str], signatures: Mapping[str, bytes] | None = None) -> bytes:
    """A list of survivors, and who has signed it."""
    signed = {name: octets(raw) for name, raw in (signatures or {}).items()}
    return pack(Message("server", signed, {"survivors": list(survivors)}))


def read_list(body: bytes) -> tuple[list[str], dict[str, bytes]]:
    """What `listed` wrote. Raises: Refused."""
    try:
        message = unpack(body)
        signatures = {name: report_bytes(tensor) for name, tensor in message.tensors.items()}
        if any(len(raw) != SIGNATURE_BYTES for raw in signatures.values()):
            raise BadInput("A signature has another length.")
        return names_of(message.facts.get("survivors")), signatures
    except (BadInput, MessageRefused) as error:
        raise Refused(f"The server's list of survivors cannot be read: {error}") from None


def names_of(value: object) -> list[str]:
    names = wire.several(value, what="A list of clients", most=MOST_SITES)
    return [wire.text(name, what="A client's name") for name in names]


def shares_to_bytes(shares: Mapping[str, int]) -> bytes:
    return b"".join(shares[name].to_bytes(SHARE_BYTES, "big") for name in sorted(shares))


def shares_from_bytes(raw: bytes, names: Sequence[str]) -> dict[str, int]:
    """The shares of these participants. Raises: BadInput for bytes of another length."""
    if len(raw) != SHARE_BYTES * len(names):
        raise BadInput(f"it gave {len(raw)} bytes where the shares of {len(names)} clients belong")
    at = range(0, len(raw), SHARE_BYTES)
    return {name: int.from_bytes(raw[k : k + SHARE_BYTES], "big") for name, k in zip(sorted(names), at, strict=True)}


def octets(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


# The site's own part.


@dataclass(eq=False)
class AtSite:
    """One site's legs in the rounds of its group. Its seeds follow from a secret of the run, made at random at its beginning."""

    signer: Signer
    roster: Roster
    folder: Path  # of the run
    rounds: int
    _now: Joined | None = field(default=None, repr=False)

    @cached_property
    def party(self) -> Party:
        path = self.folder / layout.MASKS
        store.create(path, secrets.token_bytes(SEED_BYTES))
        secret = path.read_bytes()
        if len(secret) != SEED_BYTES:
            raise BadInput(f"{path} is damaged: put it back as it was.")
        return Party(self.signer, secret)

    def setup(self, round: int) -> bytes:
        return self.party.setup(Attempt(self.roster, round)).row(self.roster)

    def join(self, setups: Mapping[str, Setup], round: int, *, model: str) -> None:
        """Raises: MessageRefused, TooFewReports; nothing is written, and nothing else can be masked then."""
        self._now = None
        self._now = self.party.join(Attempt(self.roster, round), setups.values(), model=model)

    def note(self, round: int, path: Path) -> None:
        """Puts on disk what the site has joined."""
        layout.write(path, json.dumps(self._joined(self.party.name, round).record()).encode())

    def noted(self, round: int, path: Path) -> Joined:
        """What the site had joined. Raises: BadInput for a damaged file."""
        try:
            return Joined.of(self.party, Attempt(self.roster, round), json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{path} is damaged: put it back as it was.") from None

    def mask(self, vector: np.ndarray, *, client: str, round: int, bits: int) -> np.ndarray:
        return self._joined(client, round).mask(vector, bits=bits)

    def _joined(self, client: str, round: int) -> Joined:
        if self._now is None or (client, round) != (self.party.name, self._now.attempt.round):
            raise TypeError("nothing is masked before its attempt was joined")
        return self._now

    def ahead(self, round: int) -> Mapping[str, torch.Tensor]:
        """The setup of the next round, whoever will take part in it."""
        return {SETUP: octets(self.setup(round + 1))} if round + 1 < self.rounds else {}

    def adding(self, round: int, *, count: int, bits: int) -> Adding:
        raise TypeError("a site adds up no reports")

    def heard(self, sender: str, round: int, setup: torch.Tensor | None) -> None:
        raise TypeError("a site adds up no reports")

    def open(self, adding: Adding) -> tuple[np.ndarray, Opened]:
        raise TypeError("a site adds up no reports")
