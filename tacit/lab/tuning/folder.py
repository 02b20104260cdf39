"""A search's folder: `base.toml` and `tune.toml` (what was asked), `search.json` (its name in the ledger), the ledger, and `best`.

`best` is the whole result, and all that is published: settings, model, how rows are read, score and promise. While a search goes on
there is `secret` (tacit/lab/tuning/folder.py); where all runs are seen, they stay in `runs`."""

import json
import math
import os
import secrets
import shutil
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from dataclasses import replace as dataclasses_replace
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any

from tacit import store
from tacit.crypto import keys
from tacit.data import encoder
from tacit.digest import mark
from tacit.engine.assemble import Parts
from tacit.engine.release import package
from tacit.engine.run_folder import SEARCH, Folder
from tacit.errors import BadInput, BudgetExhausted, KeyRefused, LedgerError, RunExists
from tacit.experiment import Experiment
from tacit.experiment.file import dumps
from tacit.lab.tuning.price import Priced, hidden, unsaid
from tacit.privacy.accounting.selected import Repetitions
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger.filter import ROUNDING, Spent, most_releases
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.reader import NOTHING, Before, noted, read_before
from tacit.privacy.ledger.sql import ALL

ASKED, BASE, BEST, RUNS, SUMMARY = "tune.toml", "base.toml", "best", "runs", "summary.json"
BEGUN = "begun.json"  # of runs that are seen: those that may have released something
PUBLISHED = ("experiment.toml", "model.safetensors", encoder.NAME)  # of the best run, as they are


def refuse_taken(path: Path, *, resume: bool, force: bool) -> None:
    """Raises RunExists for a folder that is in use, or BadInput if there is nothing to resume."""
    if resume and force:
        raise BadInput("--resume goes on with a search and --force starts a new one: use one of them.")
    if resume and not (path / ASKED).exists():
        raise BadInput(f"There is no search to resume in {path}.")
    if _taken(path) and not resume and not force:
        raise RunExists(
            f"{path} is in use: go on with a search by --resume, set it aside by --force, or choose another --out."
        )


def take(path: Path, *, force: bool) -> int:
    """Makes the folder, sets an earlier one aside if told to, and locks it."""
    if force and _taken(path):
        store.set_aside(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path} cannot be made a folder ({error.strerror}): choose another --out.") from None
    return store.lock_folder(path)


def _taken(path: Path) -> bool:
    return any((path / name).exists() for name in (ASKED, "compare.toml", "experiment.toml"))


def asked(path: Path) -> tuple[dict[str, Any], dict[str, list[Any]], dict[str, Any]]:
    """What the search in a folder was asked for: settings, what varies, and `runs`, `shape` and `losers`. Raises BadInput."""
    if not (path / ASKED).exists():
        raise BadInput(f"There is no search to resume in {path}.")
    with suppress(tomllib.TOMLDecodeError, KeyError, OSError, TypeError, ValueError):
        known = tomllib.loads((path / ASKED).read_text("utf-8"))
        base = tomllib.loads((path / BASE).read_text("utf-8"))
        how = {"runs": int(known["runs"]), "shape": float(known["shape"]), "losers": known.get("losers")}
        return base, dict(known["vary"]), how
    raise BadInput(f"{path / ASKED} or {BASE} is damaged: start again with --force, which keeps the old files.")


def begin(
    path: Path,
    lock: int,
    values: Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    *,
    runs: int,
    shape: float,
    losers: str | None,
    ledger: str | None,
    before: Before,
) -> Folder:
    """Writes down what was asked, once, and names the search for its ledger; of one that goes on, looks that nothing else is asked.

    Raises: BadInput where a search would go on with other settings, or nobody knows its name any more.
    """
    texts = {
        BASE: dumps(dict(values)),
        ASKED: dumps({"runs": runs, "shape": shape, **({"losers": losers} if losers else {}), "vary": dict(vary)}),
    }
    if not (path / ASKED).exists():
        way = os.path.relpath(ledger, path) if ledger else "ledger.db"
        noted = {"before": before.record()} if before.runs else {}
        store.write(path / SEARCH, json.dumps({"run": uuid.uuid4().hex, "ledger": way, **noted}).encode())
        for name, text in texts.items():  # what was asked comes last: with it there is a search
            store.write(path / name, text.encode())
    elif any((path / name).read_text("utf-8") != text for name, text in texts.items()):
        raise BadInput(
            f"The search in {path} was started with other settings: resume it as it was, or choose another --out."
        )
    try:
        name = str(json.loads((path / SEARCH).read_text("utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(
            f"{path / SEARCH} is missing or damaged, so nobody knows which charge is this search's."
        ) from None
    return Folder(path, name, lock)


def finished(path: Path) -> dict[str, Any] | None:
    """What the search in a folder found, where it has ended. Raises BadInput for a damaged file."""
    file = path / BEST / SUMMARY
    if not file.exists():
        return None
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        raise BadInput(f"{file} is damaged.") from None


def run_place(path: Path, number: int) -> Path:
    """The folder of a run that is seen. Raises LedgerError where it had begun and is gone: it would be released again."""
    place = path / RUNS / f"{number:03d}"
    if number in _begun(path) and not (place / "run.json").exists():
        raise LedgerError(
            f"{place} is gone, and what it released was paid for once: put it back, or start another search; nothing was released."
        )
    return place


def note_begun(path: Path, number: int, *starts: str) -> None:
    """Notes that a run which is seen has a folder and a ledger, and may release; by name, its starts that do not repeat."""
    known = {str(begun): names for begun, names in _begun(path).items()}
    store.write(path / BEGUN, json.dumps(known | {str(number): list(starts)}).encode())


def starts(path: Path, number: int) -> list[str]:
    """The starts of a run that is seen in this folder, where none repeats another."""
    return _begun(path).get(number, [])


def _begun(path: Path) -> dict[int, list[str]]:
    try:
        found = json.loads((path / BEGUN).read_text("utf-8"))
        known = (
            found if isinstance(found, dict) else {number: [] for number in found}
        )  # folders of old have numbers alone
        return {int(number): [str(name) for name in names] for number, names in known.items()}
    except FileNotFoundError:
        if (path / RUNS).exists():
            raise LedgerError(
                f"{path / BEGUN} is gone, so nobody knows which runs were released: put it back."
            ) from None
        store.write(path / BEGUN, b"{}")  # before there are any runs
        return {}
    except (OSError, ValueError, TypeError):
        raise LedgerError(
            f"{path / BEGUN} is damaged, so nobody knows which runs were released: put it back."
        ) from None


def publish(path: Path, run: Path, summary: dict[str, Any]) -> None:
    """Makes `best` of a run's folder, whole or not at all.

    Guarantee: its files carry the time at which the search began, so that they do not say when, and so as which, the run ended.
    """
    made = path / f".{BEST}.new"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for name in PUBLISHED:
        store.write(made / name, (run / name).read_bytes())
    store.write(made / SUMMARY, json.dumps(summary, indent=2).encode())
    began = (path / SEARCH).stat().st_mtime
    for file in (*made.iterdir(), made):
        os.utime(file, (began, began))
    made.rename(path / BEST)


# Paying for a search: once, all of it, before anything is run.


def before_of(path: Path, values: Mapping[str, Any], *, resume: bool) -> Before:
    """What other runs of a shared ledger had sealed when the search began. Nothing is written."""
    privacy = values.get("privacy", {})
    if not privacy.get("ledger"):
        return NOTHING
    unit = Experiment(**values).privacy.unit_kept
    return noted(path / SEARCH) if resume else read_before(Path(privacy["ledger"]), unit=unit)


def refuse_dear(priced: Priced, parts: Parts) -> None:
    """Raises BudgetExhausted for a search that a client cannot pay for, with what would be enough. Nothing is written."""
    privacy, population = parts.experiment.privacy, parts.population
    limits = {"total_delta": privacy.delta, "rounds": 1, "accountant": privacy.accountant, "hint": 1, "spare": False}
    together = ALL in priced.events
    for index, name in enumerate(population.names[:1] if together else population.names):
        who, budget = ALL if together else name, population[index].budget
        before = parts.before.of(who)
        if most_releases(budget, priced.events[who], before=before, asked=priced.asked.get(who, {}), **limits) < 1:
            short_of_delta = before.delta + budget.delta > privacy.delta * (1 + ROUNDING)
            said = _too_little_delta(parts, name, before) if short_of_delta else _too_dear(priced, parts, index, before)
            raise BudgetExhausted(f"{said} Nothing was written.")


def _too_little_delta(parts: Parts, name: str, before: Spent) -> str:
    privacy, left = parts.experiment.privacy, max(0.0, parts.experiment.privacy.delta - before.delta)
    return (
        f"The search takes delta {privacy.run_delta:g}, and other runs of the ledger have left {left:g} of the {privacy.delta:g} of"
        f" {name}: lower privacy.delta_share."
    )


def _too_dear(priced: Priced, parts: Parts, index: int, before: Spent) -> str:
    name, has = parts.population.names[index], parts.population[index].budget.epsilon
    left, cost = max(0.0, has - before.epsilon), priced.epsilon
    finite = math.isfinite(cost)
    costs = f"costs epsilon {shown(cost)}" if finite else "has no finite epsilon with this noise"
    raised = f"an epsilon of {shown(before.epsilon + cost)} would be enough, or " if finite else ""
    noise = _enough_noise(priced, parts)
    more = f"{noise} would be enough" if noise else "raise the noise"
    return (
        f"The search {costs} at delta {priced.delta:g}, and {name} has {left:.4g} left: {raised}{more}, or leave the noise out and"
        " it follows from epsilon; or ask for fewer --runs."
    )


def _enough_noise(priced: Priced, parts: Parts) -> str:
    """The noise with which the best alone can be paid for, as a setting; empty where none can, or where all runs are seen."""
    if not priced.hidden:
        return ""
    try:
        sized = hidden([unsaid(run) for run in priced.runs], parts.population, priced.repetitions)
    except BadInput:
        return ""
    most = max(run.experiment.privacy.noise_multiplier or 0.0 for run in sized.runs)
    return (
        f"privacy.noise_multiplier = {Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(most)).normalize():f}"
    )


def pay(ledger: Ledger, folder: Folder, parts: Parts, priced: Priced, key: str) -> None:
    """Charges the whole search, the answers that score its runs included, once: the same search that goes on is not charged again,
    and no other is let in under its name.

    Raises: LedgerError or BudgetExhausted; then nothing may be run.
    """
    texts = [candidate.experiment.toml() for candidate in priced.runs]
    attempt = mark("search", key, parts.population.digest(), package("lab.tuning"), *texts)
    ledger.open_round(0, attempt)
    again = ledger.knows(0)
    if ALL in priced.events:
        paid = ledger.admit_everybody(parts.population[0].budget, priced.events[ALL])
    else:
        everybody = [parts.population[index] for index in range(len(parts.population))]
        paid = len(ledger.admit(everybody, lambda client: priced.events[client.id])) == len(everybody)
        for query in sorted({name for asked in priced.asked.values() for name in asked}):
            answering = (
                ledger.answer(query, attempt, everybody, lambda client: priced.events[client.id]) if paid else []
            )
            paid = len(answering) == len(everybody)
    if not paid and again:
        raise LedgerError(
            f"The search in {folder.path} was paid for with other rows, settings or code: put them back, or start another one."
        )
    if not paid:
        raise BudgetExhausted("Other runs of the ledger have taken what this search needs; nothing was run.")


# What nobody may see of a search while it goes on: how many runs there are, what each picks, and the runs that lose.

NAME, STATE, README = "secret", "state.json", "README"
KEY_BYTES = 32
NAMED = 16  # characters of a folder's name
WARNING = """This folder is private: it holds runs that may lose, and how many there are. The promise of the search is about whoever
sees none of it. It is deleted when the search ends; do not copy, show or back it up. Deleted files may stay on a disk until
they are overwritten.
"""


@dataclass(frozen=True)
class State:
    """How far a search has come: the picks of all its runs, how many are done, and the best of those (its number and its place).

    `starts` are those of the search itself, by name, where what its runs draw will not come again.
    """

    key: str
    picks: tuple[int, ...]
    done: int = 0
    best: int | None = None
    rank: tuple[float, str] | None = None
    starts: tuple[str, ...] = ()

    def draw(self, number: int) -> str:
        """What the noise of one run is keyed by beside all else: no two runs share it."""
        return f"{self.key}:{number}"

    def after(self, rank: tuple[float, str] | None) -> "State":
        """The state after one more run, which would be released if nothing ranked higher; None ranks below everything.

        A score that is no number ranks as None: it compares with nothing, so that the order of runs would decide.
        """
        rank = None if rank is None or math.isnan(rank[0]) else rank
        done, better = self.done + 1, rank is not None and (self.rank is None or rank > self.rank)
        return (
            dataclasses_replace(self, done=done, best=done, rank=rank)
            if better
            else dataclasses_replace(self, done=done)
        )


def drawn(law: Repetitions, candidates: int) -> State:
    """A new search: its number of runs, and the candidate of each, from the operating system's entropy."""
    count = law.draw()
    return State(secrets.token_hex(KEY_BYTES), tuple(secrets.randbelow(candidates) for _ in range(count)))


def write(path: Path, state: State) -> None:
    """Keeps the state. Guarantee: nobody but its owner can open the folder `secret` or read the file, whatever the umask."""
    folder = path / NAME
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    if not (folder / README).exists():
        (folder / README).write_text(WARNING, "utf-8")
    keys.write(folder / STATE, asdict(state), mode=keys.SECRET, force=True)


def read_secret(path: Path) -> State | None:
    """The state of a search that goes on; None where there is none. Raises BadInput where it is damaged or lies open."""
    file = path / NAME / STATE
    if not file.exists():
        return None
    try:
        found: dict[str, Any] = keys.read(file, secret=True)
        picks, rank = tuple(int(pick) for pick in found["picks"]), found["rank"]
        placed = None if rank is None else (float(rank[0]), str(rank[1]))
        best = None if found["best"] is None else int(found["best"])
        starts = tuple(str(start) for start in found.get("starts", ()))
        state = State(str(found["key"]), picks, int(found["done"]), best, placed, starts)
    except (KeyRefused, KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(
            f"{file} is damaged or can be read by others, and a search cannot go on without it ({error!s:.80})."
        ) from None
    known = (best is None) == (placed is None) and (best is None or 1 <= best <= state.done)
    known = known and (placed is None or not math.isnan(placed[0]))
    if not (known and picks and min(picks) >= 0 and 0 <= state.done <= len(picks)):
        raise BadInput(f"{file} is damaged, and a search cannot go on without it.")
    return state


def place(path: Path, state: State, number: int) -> Path:
    """The folder of a run; its name, which a refusal may quote, does not say which run it is."""
    return path / NAME / f"run-{mark(state.draw(number))[:NAMED]}"


def forget_losers(path: Path, state: State) -> None:
    """Deletes every run but the best so far and the one that may be going on."""
    kept = {place(path, state, number).name for number in (state.best, state.done + 1) if number is not None}
    for folder in (path / NAME).glob("run-*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


def forget(path: Path) -> None:
    """Deletes all of it."""
    if (path / NAME).exists():
        shutil.rmtree(path / NAME)
