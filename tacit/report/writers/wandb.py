"""`wandb`: Weights & Biases. Offline in `<run>/wandb` unless WANDB_MODE says otherwise; `wandb sync` sends it when you choose to.

A resumed run writes its past again under the same id, each round at its own step.
"""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.report.writers import Facts, numbers


class wandb:
    """One run there."""

    wants = "wandb"

    def __init__(self, folder: Path, facts: Facts):
        self._folder, self._facts = folder, facts
        self._run: Any = None

    def past(self, records: Sequence[dict[str, Any]]) -> None:
        theirs: Any = importlib.import_module("wandb")  # this file has the same name
        self._run = theirs.init(
            project="tacit",
            name=self._facts.name,
            id=self._facts.run,
            dir=str(self._folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=self._facts.settings,
            settings=theirs.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )
        for record in records:
            self.round(record)

    def round(self, record: dict[str, Any]) -> None:
        self._run.log(numbers(record), step=record["round"] + 1)

    def finish(self, summary: dict[str, Any]) -> None:
        self._run.summary["guarantee"] = summary["sentence"]
        metric = f"test_{summary['metric']}"
        if summary[metric] is not None:
            self._run.summary[f"final_{metric}"] = summary[metric]

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
