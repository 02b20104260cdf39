"""`tensorboard`: event files in `<run>/tensorboard`, a scalar per number and round. Look with `tensorboard --logdir`.

A resumed run writes its past again in a new file that declares the old one void (purge_step), so every round is there
once, also one that a crash kept from reaching the old file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.report.writers import Facts, numbers


class tensorboard:
    """One run's event files."""

    wants = "tensorboard"

    def __init__(self, folder: Path, facts: Facts):
        self._path, self._facts = folder / "tensorboard", facts
        self._writer: Any = None

    def past(self, records: Sequence[dict[str, Any]]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._path), purge_step=0 if records else None)
        rows = "\n".join(f"| {_cell(key)} | {_cell(value)} |" for key, value in self._facts.settings.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", global_step=0)
        for record in records:
            self._add(record)
        self._writer.flush()

    def round(self, record: dict[str, Any]) -> None:
        self._add(record)
        self._writer.flush()

    def finish(self, summary: dict[str, Any]) -> None:
        self._writer.add_text("guarantee", _cell(summary["sentence"]), global_step=0)
        metric = f"test_{summary['metric']}"
        if summary[metric] is not None:
            self._writer.add_scalar(f"final/{metric}", summary[metric], summary["rounds"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, record: dict[str, Any]) -> None:
        for key, value in numbers(record).items():
            self._writer.add_scalar(tag(key), value, record["round"] + 1)


def tag(key: str) -> str:
    """A number's place on TensorBoard's page: related ones stand together.

    >>> tag("accuracy"), tag("epsilon_per_record_loosest"), tag("seconds_train")
    ('round/accuracy', 'epsilon_per_record/loosest', 'seconds/train')
    """
    if key.startswith("epsilon_per_"):
        head, _, rest = key.rpartition("_")
        return f"{head}/{rest}"
    return f"seconds/{key.removeprefix('seconds_')}" if key.startswith("seconds_") else f"round/{key}"


def _cell(value: str) -> str:
    """Plain text in TensorBoard's Markdown."""
    return "".join(f"\\{mark}" if mark in r"\`*_{}[]<>()#+!|" else mark for mark in value.replace("\n", " "))
