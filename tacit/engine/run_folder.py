"""A run's folder: its record, experiment, round log, ledger, checkpoint, model and summary.
Every file but the round log is replaced atomically. A folder belongs to one process at a time, and to one run."""

import json
import os
import threading
import tomllib
import uuid
from collections import defaultdict
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
from tacit.errors import BadInput
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
TELLING = ("writers", "evaluate_every")  # of [run]: what a run tells of itself, and may change when it goes on
PAUSE = 0.25  # seconds between two checkpoints: writing takes the process's time too
ANEW = "start again with --force, which keeps the old files."


@dataclass(frozen=True)
class Folder:
    """An open, locked folder. `run` names the run for ever."""

    path: Path
    run: str
    lock: int

    def checkpoint(self, state: State, *, round: int) -> None:
        """Writes the state from which a round starts, and the round's number; nobody but its owner may read it.
        What the server remembers may be as secret as a client's update: noise that goes on into later rounds."""
        tensors = {"params": state.params, "round": torch.tensor(round)}
        for part in ("memory", "optimizer", "control"):
            tensors |= {f"{part}.{name}": tensor for name, tensor in getattr(state, part).items()}
        tensors |= {} if state.average is None else {"average": state.average}
        content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
        store.write(self.path / CHECKPOINT, content, mode=store.OWNER)

    def restore(self) -> tuple[State, int] | None:
        """The state of the last checkpoint and the round that starts from it, or None before the first. Raises BadInput."""
        file = self.path / CHECKPOINT
        if not file.exists():
            return None
        try:
            tensors = load_file(file)
        except SafetensorError as error:
            raise BadInput(f"{file} is damaged ({error}): {ANEW}") from error
        if not {"params", "round"} <= set(tensors):
            raise BadInput(f"{file} is no checkpoint of this version of Tacit: {ANEW}")
        round = tensors["round"]
        if round.dtype != torch.int64 or round.shape or not 0 <= int(round) <= MOST_ROUNDS:
            raise BadInput(f"{file} is damaged (the number of its round): {ANEW}")
        memory, optimizer, control = (
            {name.removeprefix(part): tensor for name, tensor in tensors.items() if name.startswith(part)}
            for part in ("memory.", "optimizer.", "control.")
        )
        return State(tensors["params"], memory, optimizer, tensors.get("average"), control), int(round)

    def rounds(self, *, before: int) -> list[dict[str, Any]]:
        """The log of the rounds before a checkpoint; what a crash left after it is dropped from the file."""
        records = self.past(before=before)
        self.log_again(records)
        return records

    def past(self, *, before: int) -> list[dict[str, Any]]:
        """The same, and nothing is dropped: a start that is refused later leaves the log as it was."""
        return [record for record in _logged(self.path) if record["round"] < before]

    def log(self, record: dict[str, Any]) -> None:
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log_again(self, records: Iterable[dict[str, Any]]) -> None:
        self.write("rounds.jsonl", "".join(f"{json.dumps(record)}\n" for record in records).encode())

    def write(self, name: str, content: bytes) -> None:
        store.write(self.path / name, content)

    def close(self) -> None:
        os.close(self.lock)


def _logged(path: Path) -> list[dict[str, Any]]:
    # the complete lines of the round log in a run's folder
    file, records = path / "rounds.jsonl", []
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and type(record.get("round")) is int:
            records.append(record)
    return records


def logged_rounds(path: Path) -> set[int]:
    return {record["round"] for record in _logged(path)}


def read_table(path: Path) -> dict[str, Any]:
    """A JSON file's table; empty where there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ledger_of(experiment: Experiment, path: Path) -> Path:
    """Where the ledger of a run lies; its secret is beside it, where nothing is charged too."""
    return Path(experiment.privacy.ledger or path / "ledger.db")


def _rows_digest(path: Path, experiment: Experiment) -> dict[str, str]:
    rows = experiment.data.part
    return {ROWS: keyed(key_of(ledger_of(experiment, path)), digest_of(rows))} if rows is not None else {}


def refuse_other_parts(path: Path, experiment: Experiment) -> None:
    """Raises BadInput where a run was started with another part from Python than this experiment carries, or with none;
    LedgerError where nobody can tell, for want of the ledger's secret."""
    known, now = tomllib.loads((path / "experiment.toml").read_text("utf-8")), experiment.model_dump()
    ask = "pass what it began with, or choose another out."
    for key, argument in PASSED_AS.items():
        section, _, name = key.partition(".")
        before, after = known.get(section, {}), now[section]
        if PYTHON not in (before.get(name), after[name]):
            continue
        first, second = before.get(PASSED, before.get(name)), after.get(PASSED, after[name] or "nothing")
        if not str(first).startswith(str(second)):  # a model's digest comes when it is made
            other = "other data" if argument == "data" else f"another {argument}"
            said = other if before.get(name) == PYTHON else f"no {argument} from Python"
            raise BadInput(f"The run in {path} was started with {said} ({first}; now {second}): {ask}")
    if read_table(path / "run.json").get(ROWS) != _rows_digest(path, experiment).get(ROWS):
        raise BadInput(f"The run in {path} was started with other data (as many rows, and not the same): {ask}")


def says_same(text: str, experiment: Experiment) -> bool:
    """Whether a run's file is that of an experiment, but for the rule that was written in where it names none, and for who is
    told of rounds and how often they are tested (`run.writers`, `run.evaluate_every`), which no release depends on.

    >>> text = Experiment(aggregate={"rule": "mean"}).toml()
    >>> says_same(text, Experiment()), says_same(text, Experiment(aggregate={"rule": "pfa"}))
    (True, False)
    """
    known = _without_telling(text)
    if experiment.aggregate.rule is None:
        known.get("aggregate", {}).pop("rule", None)
    return known == _without_telling(experiment.toml())


def _without_telling(text: str) -> dict[str, Any]:
    table = defaultdict(dict, tomllib.loads(text))
    table["run"] = {key: value for key, value in table["run"].items() if key not in TELLING}
    table["aggregate"] = dict(table["aggregate"])
    return dict(table)


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
    store.refuse_taken(path, resume=resume, force=force)
    if force and known.exists():
        store.set_aside(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = store.lock_folder(path)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be made a folder to write to ({error.strerror}): choose another --out."
        ) from None
    try:
        if resume:
            _refuse_other(path, experiment, resolved)
        else:
            noted = ({"before": before.record()} if before.runs else {}) | _rows_digest(path, experiment)
            store.write(path / "run.json", json.dumps({"run": uuid.uuid4().hex, **noted}).encode())
            store.write(known, (resolved or experiment).toml().encode())
        run = read_table(path / "run.json").get("run")
        if run is None:
            raise BadInput(
                f"{path / 'run.json'} is missing or damaged, so nobody knows which charges are this run's: put it back, or start"
                " anew with --force, which keeps the old files."
            )
    except BaseException:
        os.close(lock)
        raise
    return Folder(path, str(run), lock)


def _refuse_other(path: Path, experiment: Experiment, resolved: Experiment | None) -> None:
    text = (path / "experiment.toml").read_text("utf-8")
    written = [_without_telling(one.toml()) for one in (experiment, resolved) if one is not None]
    if says_same(text, experiment) if resolved is None else _without_telling(text) in written:
        return
    refuse_other_parts(path, resolved or experiment)
    named = tomllib.loads(text).get("name")
    if named != experiment.name:
        raise BadInput(
            f"{path} holds a run of the experiment {named!r}, not of {experiment.name!r}: leave the experiment out to resume it"
            f" (`tacit run --resume --out {path}`), or choose another --out."
        )
    raise BadInput(
        f"The run in {path} was started with other settings: resume it as it was (leave out --set), or choose another --out."
    )


class Checkpoints:
    """Writes states into a run's folder: where they are in memory, or with `once`, at once; else in a thread, the newest first: on
    an accelerator a round takes less time than writing its state to disk. Raises what writing raised, at the next state or at the
    end."""

    def __init__(self, folder: Folder, device: torch.device, *, once: bool = False):
        self._folder, self._device = folder, device
        self._newest: tuple[State, int, Any] | None = None
        self._failed: BaseException | None = None
        self._news, self._ended = threading.Condition(), False
        in_thread = device.type == "cuda" and not once
        self._thread = threading.Thread(target=self._write, daemon=True) if in_thread else None

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
            if kind is None and self._failed is not None:
                raise self._failed

    def write(self, state: State, *, round: int) -> None:
        """Keeps a state from which a round starts. Assumes: its tensors are not changed any more."""
        if self._thread is None:
            self._folder.checkpoint(state, round=round)
            return
        if self._failed is not None:
            raise self._failed
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        with self._news:
            self._newest = (state, round, ready)
            self._news.notify()

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
            except BaseException as error:  # noqa: BLE001 - raised again in the run
                self._failed = error
                return
            with self._news:
                self._news.wait_for(lambda: self._ended, timeout=PAUSE)
