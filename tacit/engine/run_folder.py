"""A run's folder: its record, experiment, round log, ledger, checkpoint, model and summary.
Every file but the round log is replaced atomically. A folder belongs to one process at a time, and to one run."""

import json
import os
import threading
import tomllib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from tacit import store
from tacit.data.given import digest_of
from tacit.errors import BadInput, RunExists
from tacit.experiment import Experiment
from tacit.experiment.schema import PASSED
from tacit.plugin import PASSED_AS, PYTHON
from tacit.privacy.ledger.disk import key_of, keyed
from tacit.privacy.ledger.ledger import NOTHING, Before
from tacit.types import State

CHECKPOINT = "checkpoint.safetensors"
COMPARISON = "compare.toml"  # what a comparison was asked for
SEARCH = "search.json"  # what a search (tacit/lab/tuning) is called by its ledger, and which one that is
ROWS = "rows"  # the key, in run.json, of the hash of rows that were passed from Python
MOST_ROUNDS = 10**9
TELLING = ("writers = ", "evaluate_every = ")  # of [run]: what a run tells of itself, and may change when it goes on


@dataclass(frozen=True)
class Folder:
    """An open, locked folder. `run` names the run for ever; `settings` is the experiment's text."""

    path: Path
    run: str
    lock: int

    def checkpoint(self, state: State, *, round: int) -> None:
        """Writes the state from which a round starts, and the round's number; nobody but its owner may read it.
        What the server remembers may be as secret as a client's update: noise that goes on into later rounds."""
        tensors = {"params": state.params, "round": torch.tensor(round)}
        tensors |= {f"memory.{name}": tensor for name, tensor in state.memory.items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in state.optimizer.items()}
        tensors |= {f"control.{name}": tensor for name, tensor in state.control.items()}
        tensors |= {} if state.average is None else {"average": state.average}
        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        store.write(self.path / CHECKPOINT, content, mode=store.OWNER)

    def restore(self) -> tuple[State, int] | None:
        """The state of the last checkpoint and the round that starts from it, or None before the first.
        Raises BadInput for a file that is damaged, or is a checkpoint of a Tacit that wrote them in another way."""
        file = self.path / CHECKPOINT
        if not file.exists():
            return None
        try:
            tensors = load_file(file)
        except SafetensorError as error:
            raise BadInput(
                f"{file} is damaged ({error}): start again with --force, which keeps the old files."
            ) from error
        if not {"params", "round"} <= set(tensors):
            raise BadInput(
                f"{file} is no checkpoint of this version of Tacit: start again with --force, which keeps the old files."
            )
        memory, optimizer, control = (
            {name.removeprefix(part): tensor for name, tensor in tensors.items() if name.startswith(part)}
            for part in ("memory.", "optimizer.", "control.")
        )
        state = State(tensors["params"], memory, optimizer, tensors.get("average"), control)
        return state, _round(tensors["round"], file)

    def rounds(self, *, before: int) -> list[dict[str, Any]]:
        """The log of the rounds before a checkpoint; what a crash left after it is dropped from the file."""
        kept = self._lines(before)
        store.write(self.path / "rounds.jsonl", "".join(f"{line}\n" for line in kept).encode())
        return [json.loads(line) for line in kept]

    def past(self, *, before: int) -> list[dict[str, Any]]:
        """The same, and nothing is dropped: a start that is refused later leaves the log as it was."""
        return [json.loads(line) for line in self._lines(before)]

    def _lines(self, before: int) -> list[str]:
        file = self.path / "rounds.jsonl"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return [line for line in lines if _complete(line) and json.loads(line)["round"] < before]

    def logged(self) -> set[int]:
        """The rounds that the log holds."""
        return logged_rounds(self.path)

    def log(self, record: dict[str, Any]) -> None:
        """Adds a line to the round log."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log_again(self, records: Iterable[dict[str, Any]]) -> None:
        """Writes the round log anew."""
        store.write(self.path / "rounds.jsonl", "".join(f"{json.dumps(record)}\n" for record in records).encode())

    def write(self, name: str, content: bytes) -> None:
        """Replaces a file of the folder."""
        store.write(self.path / name, content)

    def close(self) -> None:
        """Gives the folder free."""
        os.close(self.lock)


def logged_rounds(path: Path) -> set[int]:
    """The rounds that the log in a run's folder holds."""
    file = path / "rounds.jsonl"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return {int(json.loads(line)["round"]) for line in lines if _complete(line)}


def refuse_taken(path: Path, *, resume: bool, force: bool) -> None:
    """Raises RunExists where a run would be overwritten, or BadInput where there is none to resume."""
    known = path / "experiment.toml"
    if known.exists() and not resume and not force:
        raise RunExists(
            f"{path} already holds a run: use --resume to go on with it, or --force to set it aside and start anew."
        )
    if resume and not known.exists():
        raise BadInput(f"There is no run to resume in {path}.")


def ledger_of(experiment: Experiment, path: Path) -> Path:
    """Where the ledger of a run lies; its secret is beside it, where nothing is charged too."""
    return Path(experiment.privacy.ledger or path / "ledger.db")


def _rows_mark(path: Path, experiment: Experiment) -> dict[str, str]:
    rows = experiment.data.part
    return {ROWS: keyed(key_of(ledger_of(experiment, path)), digest_of(rows))} if rows is not None else {}


def refuse_other_parts(path: Path, experiment: Experiment) -> None:
    """Raises BadInput where a run was started with another part from Python than this experiment carries, or with none;
    LedgerError where nobody can tell, for want of the ledger's secret."""
    known, now = tomllib.loads((path / "experiment.toml").read_text("utf-8")), experiment.model_dump()
    for key, argument in PASSED_AS.items():
        section, _, name = key.partition(".")
        before, after = known.get(section, {}), now[section]
        if PYTHON not in (before.get(name), after[name]):
            continue
        first, second = before.get(PASSED, before.get(name)), after.get(PASSED, after[name] or "nothing")
        if not str(first).startswith(str(second)):  # a model's digest comes when it is made
            other = "other data" if argument == "data" else f"another {argument}"
            said = other if before.get(name) == PYTHON else f"no {argument} from Python"
            raise BadInput(
                f"The run in {path} was started with {said} ({first}; now {second}): pass what it began with, or choose another"
                " out."
            )
    if _read(path / "run.json").get(ROWS) != _rows_mark(path, experiment).get(ROWS):
        raise BadInput(
            f"The run in {path} was started with other data (as many rows, and not the same): pass what it began with, or choose"
            " another out."
        )


def says_same(text: str, experiment: Experiment) -> bool:
    """Whether a run's file is that of an experiment, but for the rule that was written in where it names none, and for who is
    told of rounds and how often they are tested (`run.writers`, `run.evaluate_every`), which no release depends on.

    >>> text = Experiment(aggregate={"rule": "mean"}).toml()
    >>> says_same(text, Experiment()), says_same(text, Experiment(aggregate={"rule": "pfa"}))
    (True, False)
    """
    if experiment.aggregate.rule is None:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("rule = "))
    return _without_telling(text) == _without_telling(experiment.toml())


def open_folder(
    path: Path,
    experiment: Experiment,
    *,
    resume: bool,
    force: bool,
    resolved: Experiment | None = None,
    before: Before = NOTHING,
) -> Folder:
    """Makes or reopens a run's folder and locks it. Raises RunExists, or BadInput if there is nothing to resume.
    `resolved` is the experiment as written down; `before`, what other runs of its ledger had sealed."""
    known = path / "experiment.toml"
    refuse_taken(path, resume=resume, force=force)
    if force and known.exists():
        store.set_aside(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = store.lock_folder(path)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be made a folder to write to ({error.strerror}): choose another --out."
        ) from None
    if not resume:
        noted = ({"before": before.record()} if before.runs else {}) | _rows_mark(path, experiment)
        store.write(path / "run.json", json.dumps({"run": uuid.uuid4().hex, **noted}).encode())
        store.write(known, (resolved or experiment).toml().encode())
    elif not _same(known.read_text("utf-8"), experiment, resolved):
        os.close(lock)
        refuse_other_parts(path, resolved or experiment)
        named = tomllib.loads(known.read_text("utf-8")).get("name")
        if named != experiment.name:
            raise BadInput(
                f"{path} holds a run of the experiment {named!r}, not of {experiment.name!r}: leave the experiment out to resume it"
                f" (`tacit run --resume --out {path}`), or choose another --out."
            )
        raise BadInput(
            f"The run in {path} was started with other settings: resume it as it was (leave out --set), or choose another --out."
        )
    return Folder(path, _run(path / "run.json", lock), lock)


def _run(file: Path, lock: int) -> str:
    try:
        return str(_read(file)["run"])
    except KeyError:
        os.close(lock)
        raise BadInput(
            f"{file} is missing or damaged, so nobody knows which charges are this run's: put it back, or start anew with"
            " --force, which keeps the old files."
        ) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _same(text: str, experiment: Experiment, resolved: Experiment | None) -> bool:
    if resolved is None:
        return says_same(text, experiment)
    return _without_telling(text) in [_without_telling(one.toml()) for one in (experiment, resolved)]


def _without_telling(text: str) -> str:
    head, table, run = text.rpartition("\n[run]\n")
    own, following, rest = run.partition("\n[")
    lines = [line for line in own.splitlines(keepends=True) if not line.startswith(TELLING)]
    return f"{head}{table}{''.join(lines)}{following}{rest}" if table else text


def _round(written: torch.Tensor, file: Path) -> int:
    if written.dtype != torch.int64 or written.shape or not 0 <= int(written) <= MOST_ROUNDS:
        raise BadInput(
            f"{file} is damaged (the number of its round): start again with --force, which keeps the old files."
        )
    return int(written)


def _complete(line: str) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and type(record.get("round")) is int


# Checkpoints beside the run: on an accelerator a round takes less time than writing its state to disk.

PAUSE = 0.25  # seconds between two: writing takes the process's time too


class Checkpoints:
    """Writes states into a run's folder: where they are in memory, or with `once`, at once; else in a thread, the newest first.
    Raises what writing raised, at the next state or at the end."""

    def __init__(self, folder: Folder, device: torch.device, *, once: bool = False):
        self._folder, self._device = folder, device
        self._newest: tuple[State, int, Any] | None = None
        self._failed: BaseException | None = None
        self._news, self._ended = threading.Condition(), False
        beside = device.type == "cuda" and not once
        self._thread = threading.Thread(target=self._write, daemon=True) if beside else None

    def __enter__(self) -> "Checkpoints":
        if self._thread:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread:
            with self._news:
                self._ended = True
                self._news.notify()
            self._thread.join()
            if kind is None:
                self._raise()

    def write(self, state: State, *, round: int) -> None:
        """Keeps a state from which a round starts. Assumes: its tensors are not changed any more."""
        if self._thread is None:
            self._folder.checkpoint(state, round=round)
            return
        self._raise()
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        with self._news:
            self._newest = (state, round, ready)
            self._news.notify()

    def _raise(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _write(self) -> None:
        stream = torch.cuda.Stream(self._device)  # so that copies do not stand between the kernels of the next round
        while True:
            with self._news:
                self._news.wait_for(lambda: self._newest is not None or self._ended)
                if self._newest is None:
                    return
                (state, round, ready), self._newest = self._newest, None
            try:
                with torch.cuda.stream(stream):
                    stream.wait_event(ready)
                    copied = state.to(torch.device("cpu"))
                self._folder.checkpoint(copied, round=round)
            except BaseException as error:  # noqa: BLE001 - told to the run
                self._failed = error
                return
            with self._news:
                self._news.wait_for(lambda: self._ended, timeout=PAUSE)
