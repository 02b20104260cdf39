"""Follows one round of each kind through the house and writes the files it passes into docs/architecture.md: `python docs/ways.py`.

What counts is what really ran: the second of two rounds of three clients, one process, everything that Python calls. A file is
counted once, a change of file once for each pair of functions that call each other across files.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tacit
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.server import Call, serve
from tacit.deploy.site.limits import make_site
from tacit.engine.assemble import clients

HOME = Path(tacit.__file__).parent
PAGE = HOME.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- ways -->", "<!-- /ways -->"
SMALL = {
    "data": {"name": "digits", "clients": 3, "examples_per_client": 60},
    "train": {"rounds": 2, "local_steps": 2},
    "run": {"workers": 1},
}
LOCAL = tacit.Experiment(**SMALL, privacy={"kind": "local", "epsilon": (1.0, 2.0, 8.0)}, aggregate={"rule": "pfa"})
CENTRAL = tacit.Experiment(**SMALL, privacy={"kind": "central", "epsilon": 8.0})
SEALED = {"privacy": {"kind": "distributed", "epsilon": 8.0}, "protect": {"kind": "paillier", "key": {"bits": 2048}}}
ENCRYPTED = tacit.Experiment(**SMALL, **SEALED)
BEFORE = {"local": (29, 86), "central": (23, 66), "encrypted": (40, 119), "deployed": (42, 116)}  # a5b244f, same script


class Way:
    """The files of a round, in the order in which it comes to them, and the calls that lead from one to another."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.calls: set[tuple[str, ...]] = set()

    def observe(self, record: dict[str, Any]) -> None:
        """Begins after the first round and ends after the second."""
        sys.setprofile(self._enter if record["round"] == 0 else None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> None:
        file, caller = _file(frame), frame.f_back
        if event != "call" or file is None or frame.f_code.co_name.startswith("<"):
            return
        while caller is not None and _file(caller) is None:
            caller = caller.f_back
        origin = _file(caller) if caller else None
        if file not in self.files:
            self.files.append(file)
        if caller and origin and origin != file:
            self.calls.add((origin, caller.f_code.co_qualname, file, frame.f_code.co_qualname))


def _file(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else None


@contextmanager
def following() -> Iterator[Way]:
    """A way that is not followed any more when the block is left."""
    try:
        yield Way()
    finally:
        sys.setprofile(None)


def simulated(experiment: tacit.Experiment) -> Way:
    """One round of `tacit.run`."""
    with tempfile.TemporaryDirectory() as folder, following() as way:
        tacit.run(experiment, out=f"{folder}/run", observe=way.observe, page=False)
        return way


def deployed(experiment: tacit.Experiment) -> Way:
    """One round of a server and its sites, with everything but the network between them."""
    with tempfile.TemporaryDirectory() as name, following() as way:
        folder, (_, _, population) = Path(name), clients(experiment)
        for site, epsilon in zip(population.names, population.epsilons.tolist(), strict=True):
            make_site(folder / site, experiment, name=site, epsilon=epsilon)
        grid = LocalGrid(client_app(), [folder / site for site in population.names])
        serve(grid, experiment, Call(out=folder / "out", sites=population.names), way.observe)
        return way


def main() -> None:
    ways = {"local": simulated(LOCAL), "central": simulated(CENTRAL)}
    ways |= {"encrypted": simulated(ENCRYPTED), "deployed": deployed(LOCAL)}
    rows = [
        f"| {name} | {BEFORE[name][0]} | {len(way.files)} | {BEFORE[name][1]} | {len(way.calls)} |"
        for name, way in ways.items()
    ]
    head = "| round | files before | after | calls across files before | after |\n|---|---|---|---|---|\n"
    lists = [f"**{name}**: {', '.join(f'`{file}`' for file in way.files)}" for name, way in ways.items()]
    text = f"{BEGIN}\n{head}" + "\n".join(rows) + "\n\n" + "\n\n".join(lists) + f"\n{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: text, PAGE.read_text("utf-8"), flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
