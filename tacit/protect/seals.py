"""How integers travel so that they can be added: as they are, or sealed so that whoever adds them cannot read them.

A seal is used on three sides. A client seals its report; the server reads and adds reports; whoever may open the sum opens
it, once it holds enough of them. `Plain` is the slow twin of `Sealed`: from the same integers both open the same sum.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from gmpy2 import mpz

from tacit.errors import BadCiphertext, BadInput, GridOverflow, OpeningRefused
from tacit.protect.lanes import Lanes
from tacit.protect.paillier import PublicKey, SecretKey, Source
from tacit.types import Shared


class Seal(Protocol):
    """What a group of clients uses. A running total starts as None."""

    def seal(self, shared: Shared) -> torch.Tensor:
        """A client's report."""
        ...

    def add(self, total: Any, report: torch.Tensor) -> Any:
        """The total with one more report. Raises BadInput, GridOverflow or MessageRefused for what is no report."""
        ...

    def open(self, total: Any, *, reports: int) -> np.ndarray:
        """The sum of the integers. Raises OpeningRefused below the fewest reports, GridOverflow for what left the grid."""
        ...


@dataclass(frozen=True)
class Plain:
    """Reports that everybody on the way can read: for a server that is trusted to add, and to measure the others by."""

    lanes: Lanes
    fewest: int

    def seal(self, shared: Shared) -> torch.Tensor:
        return shared.vector.to(torch.int32 if self.lanes.reach < 2**31 else torch.int64)

    def add(self, total: np.ndarray | None, report: torch.Tensor) -> np.ndarray:
        if report.shape != (self.lanes.count,) or report.is_floating_point():
            raise BadInput(f"a report of {self.lanes.count} integers was expected")
        values = report.numpy().astype(np.int64)
        if np.abs(values).max() > self.lanes.reach:
            raise GridOverflow("its report is beyond the grid")
        return values if total is None else total + values

    def open(self, total: np.ndarray, *, reports: int) -> np.ndarray:
        refuse_few(reports, self.fewest)
        return total


@dataclass(frozen=True)
class Sealed:
    """Reports under Paillier: the server multiplies what it cannot read. Only a holder of `secret` can open."""

    lanes: Lanes
    fewest: int
    public: PublicKey
    randomisers: Source = field(repr=False)
    secret: SecretKey | None = field(default=None, repr=False)

    def seal(self, shared: Shared) -> torch.Tensor:
        sealed = self.public.seal(self.lanes.pack(shared.vector.numpy()), self.randomisers)
        return torch.frombuffer(bytearray(self.public.to_bytes(sealed)), dtype=torch.uint8)

    def add(self, total: list[mpz] | None, report: torch.Tensor) -> list[mpz]:
        if report.dtype != torch.uint8 or report.shape != (self.lanes.numbers * self.public.ciphertext_bytes,):
            raise BadCiphertext(f"{self.lanes.numbers} ciphertexts were expected")
        ciphertexts = self.public.from_bytes(report.numpy().tobytes())
        return ciphertexts if total is None else self.public.add([total, ciphertexts])

    def open(self, total: list[mpz], *, reports: int) -> np.ndarray:
        refuse_few(reports, self.fewest)
        if self.secret is None:
            raise OpeningRefused("The sum can be opened only where a secret key is: send it to a client.")
        return self.lanes.unpack(self.secret.open(total), reports=reports)


def refuse_few(reports: int, fewest: int) -> None:
    """Raises OpeningRefused for a sum with less noise than was promised."""
    if reports < fewest:
        raise OpeningRefused(f"A sum of {reports} reports is not opened: its noise was shared for at least {fewest}.")
