"""The model that a run begins with: who trained it, and whether the ledger of the records knows of that.
The run's name is an attribute of a model's layers, which goes with copies and pickles; bare numbers leave it behind. A run without
privacy that names a shared ledger has it know a hash of each tensor. Both are for who forgets, not who hides."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from tacit.errors import LedgerError
from tacit.experiment import Experiment
from tacit.privacy.ledger import disk
from tacit.training.flat import bits
from tacit.wire import digest_of

UNKNOWN = "unknown"  # a run of Tacit that does not say which
_BY = "_trained_by"
UNPROTECTED = "unprotected"  # how a ledger calls a tensor that a run without privacy trained
ADVICE = (
    "Begin with another model; or have one privacy.ledger charged for both runs; or, if it was trained on other people's records,"
    ' say model.start = "other-records". Nothing was released.'
)


def trained(model: nn.Module, run: str | None) -> nn.Module:
    """The model with the name of the run that trained it, on every part of it that trains."""
    run = run if run and re.fullmatch(r"[0-9a-f]{32}", run) else UNKNOWN
    for part in model.modules():
        if part is model or any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            part.__dict__[_BY] = run
    return model


def start_of(experiment: Experiment, model: nn.Module, params: Mapping[str, torch.Tensor] | None = None) -> "Start":
    """A model as a run begins with it; `params` are those that train, where the model does not have them any more."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers()), **(params or {})}
    runs = frozenset(part.__dict__[_BY] for part in model.modules() if _BY in part.__dict__)
    return Start(frozenset() if experiment.model.start is not None else runs, lambda: digests(own.values()))


def digests(tensors: Iterable[torch.Tensor]) -> frozenset[str]:
    return frozenset(digest_of("tensor", f"{tensor.dtype} {tuple(tensor.shape)}", bits(tensor)) for tensor in tensors)


@dataclass(frozen=True)
class Start:
    """The model that a run begins with: the runs that trained it, and the hashes of its tensors.
    Guarantee, of a ledger that has it among its conditions: each of these runs was charged there, and no tensor has the very bits
    that a run without privacy left there."""

    runs: frozenset[str]
    tensors: Callable[[], frozenset[str]] = field(repr=False)
    key: bytes = field(default=b"", repr=False)  # of the ledger that is asked

    def under(self, key: bytes) -> "Start":
        return replace(self, key=key)

    def refuse(self, db: sqlite3.Connection, path: Path) -> None:
        """Raises LedgerError where the ledger does not know who trained the model, or knows that it was a run without privacy."""
        self._refuse_others({run for (run,) in db.execute("SELECT DISTINCT run FROM seals")}, path)
        noted = dict(db.execute("SELECT digest, key FROM draws WHERE key LIKE ?", (f"released % {UNPROTECTED} %",)))
        own = {disk.keyed(self.key, digest) for digest in self.tensors()} if noted else set()
        for digest in sorted(own & noted.keys()):
            raise LedgerError(
                f"The model that training would begin with holds numbers that the run {noted[digest].split()[1]} trained without"
                f" privacy, on the records of the ledger {path}: begin with another model. Nothing was released."
            )

    def refuse_before(self, path: Path | None) -> None:
        """The same before a run has a folder, or a ledger of its own: a new ledger knows of no run. Raises LedgerError."""
        if path is None or not path.exists() or not path.stat().st_size:
            self._refuse_others(set(), path)
            return
        with disk.reading(path) as db:
            if "seals" in disk.tables_of(db):
                self.under(disk.key_of(path)).refuse(db, path)

    def note(self, db: sqlite3.Connection) -> None:
        """Nothing: that the run was charged says who trained what it leaves."""

    def _refuse_others(self, known: set[str], path: Path | None) -> None:
        for run in sorted(self.runs - known):
            whose = "a run of Tacit that its folder does not name" if run == UNKNOWN else f"the run {run}"
            whose += "" if path is None else f", which the ledger {path} has not charged"
            raise LedgerError(
                f"The model that training would begin with was trained by {whose}: nobody knows what it has seen of these records."
                f" {ADVICE}"
            )
