"""`prometheus`: the last round's numbers in `<run>/metrics.prom`, in the text format that Prometheus's node exporter collects.

Point its textfile collector at the folder (`--collector.textfile.directory`). The file is replaced as a whole, so nobody reads half
a round. Every number is a gauge with the run and the experiment as labels; the name of an epsilon carries its unit. `tacit_round`
counts from 1, as the terminal and the page do.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit import store
from tacit.report.writers import Facts, numbers

FILE = "metrics.prom"


class prometheus:
    """One run's file."""

    def __init__(self, folder: Path, facts: Facts):
        self._path = folder / FILE
        self._labels = f'{{run="{quoted(facts.run)}",experiment="{quoted(facts.name)}"}}'

    def past(self, records: Sequence[dict[str, Any]]) -> None:
        if records:
            self.round(records[-1])

    def round(self, record: dict[str, Any]) -> None:
        self._write({"round": record["round"] + 1, **numbers(record)}, finished=False)

    def finish(self, summary: dict[str, Any]) -> None:
        metric = f"test_{summary['metric']}"
        final = {} if summary[metric] is None else {f"final_{metric}": summary[metric]}
        self._write({"rounds": summary["rounds"], **final}, finished=True)
        text = self._path.read_text(
            "utf-8"
        )  # an epsilon alone says neither against whom it holds nor under which change
        said = f'{self._labels[:-1]},sentence="{quoted(summary["sentence"])}"}}'
        store.write(self._path, f"{text}# TYPE tacit_guarantee gauge\ntacit_guarantee{said} 1\n".encode())

    def close(self) -> None:
        """Nothing is open between two rounds."""

    def _write(self, found: dict[str, float], *, finished: bool) -> None:
        old = self._path.read_text("utf-8") if finished and self._path.exists() else ""
        named = {gauge(key): value for key, value in {**found, "finished": float(finished)}.items()}
        again = re.compile(rf"(# TYPE )?({'|'.join(named)})[{{ ]")
        kept = [
            line for line in old.split("\n") if line and not again.match(line)
        ]  # a name may hold other ends of lines
        new = [
            text
            for name, value in named.items()
            for text in (
                f"# TYPE {name} gauge",
                f"{name}{self._labels} {float(value)!r}",
            )  # an epsilon keeps all its digits
        ]
        store.write(self._path, ("\n".join([*kept, *new]) + "\n").encode())


def gauge(key: str) -> str:
    """A number's name.

    >>> gauge("epsilon_per_record_loosest"), gauge("recall of 3")
    ('tacit_epsilon_per_record_loosest', 'tacit_recall_of_3')
    """
    return "tacit_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)


def quoted(text: str) -> str:
    r"""A label's value: of escapes Prometheus knows these three, and refuses a file with any other.

    >>> print(quoted('a "b"'))
    a \"b\"
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
