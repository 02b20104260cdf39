"""A search on disk: `base.toml` and `tune.toml` (what was asked), `search.json` (its name in the ledger), the ledger, and `best`.

`best` is the whole result, and all that is published: settings, model, how rows are read, score and promise. While a search goes on
there is `secret`, which nobody may see: how many runs there are, what each picks, and the runs that lose. Where all runs are seen,
they stay in `runs`. Of copies of a folder, and of older ones that were put back, one alone has each start in the ledger."""

import json
import math
import os
import secrets
import shutil
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit import store
from tacit.crypto import keys
from tacit.data import encoder
from tacit.engine.assemble import Parts
from tacit.engine.run_folder import SEARCH, Folder
from tacit.errors import BadInput, KeyRefused, LedgerError, RunExists
from tacit.experiment.file import dumps
from tacit.privacy.accounting.events import Repetitions
from tacit.privacy.ledger.ledger import Before, Ledger
from tacit.wire import digest_of

ASKED, BASE, BEST, RUNS, SUMMARY = "tune.toml", "base.toml", "best", "runs", "summary.json"
BEGUN = "begun.json"  # of runs that are seen: those that may have released something
HELD = (ASKED, "compare.toml", "experiment.toml")  # of a folder that is in use
PUBLISHED = ("experiment.toml", "model.safetensors", encoder.NAME)  # of the best run, as they are
NAME, STATE, README = "secret", "state.json", "README"
KEY_BYTES = 32
NAMED = 16  # characters of a folder's name
WARNING = """This folder is private: it holds runs that may lose, and how many there are. The promise of the search is about whoever
sees none of it. It is deleted when the search ends; do not copy, show or back it up. Deleted files may stay on a disk until
they are overwritten.
"""
FOUND = "search"  # under which name the ledger knows what was found
NO_MODEL = "nothing was found"


def refuse_taken(path: Path, *, resume: bool, force: bool) -> None:
    """Raises RunExists for a folder that is in use, or BadInput if there is nothing to resume."""
    if resume and force:
        raise BadInput("--resume goes on with a search and --force starts a new one: use one of them.")
    if resume and not (path / ASKED).exists():
        raise BadInput(f"There is no search to resume in {path}.")
    if any((path / name).exists() for name in HELD) and not resume and not force:
        raise RunExists(f"{path} is in use: --resume a search, set it aside with --force, or choose another --out.")


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
    Raises: BadInput where a search would go on with other settings, or nobody knows its name any more."""
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
        raise BadInput(f"The search in {path} has other settings: resume it as it was, or choose another --out.")
    try:
        name = str(json.loads((path / SEARCH).read_text("utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(f"{path / SEARCH} is missing or damaged: it says which charge is this search's.") from None
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


def _begun(path: Path) -> dict[int, list[str]]:
    try:
        found = json.loads((path / BEGUN).read_text("utf-8"))
        return {int(number): [str(name) for name in names] for number, names in found.items()}
    except FileNotFoundError:
        if (path / RUNS).exists():
            raise LedgerError(f"{path / BEGUN} is gone: it says which runs were released, so put it back.") from None
        store.write(path / BEGUN, b"{}")  # before there are any runs
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        raise LedgerError(f"{path / BEGUN} is damaged: it says which runs were released, so restore it.") from None


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


@dataclass(frozen=True)
class State:
    """How far a search has come: the picks of all its runs, how many are done, and the best of those (its number and its place).
    `starts` are those of the search itself, by name, where what its runs draw will not come again."""

    key: str
    picks: tuple[int, ...]
    done: int = 0
    best: int | None = None
    rank: tuple[float, str] | None = None
    starts: tuple[str, ...] = ()

    def draw(self, number: int) -> str:
        return f"{self.key}:{number}"

    def after(self, rank: tuple[float, str] | None) -> "State":
        """The state after one more run, which would be released if nothing ranked higher; None ranks below everything.
        A score that is no number ranks as None: it compares with nothing, so that the order of runs would decide."""
        rank = None if rank is None or math.isnan(rank[0]) else rank
        done, better = self.done + 1, rank is not None and (self.rank is None or rank > self.rank)
        return replace(self, done=done, best=done, rank=rank) if better else replace(self, done=done)


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
    return path / NAME / f"run-{digest_of(state.draw(number))[:NAMED]}"


def forget_losers(path: Path, state: State) -> None:
    """Deletes every run but the best so far and the one that may be going on."""
    kept = {place(path, state, number).name for number in (state.best, state.done + 1) if number is not None}
    for folder in (path / NAME).glob("run-*"):
        if folder.name not in kept:
            shutil.rmtree(folder)


def forget(path: Path) -> None:
    if (path / NAME).exists():
        shutil.rmtree(path / NAME)


# The starts of a search in its ledger.


def begin_hidden(path: Path, state: State, ledger: Ledger, start: str) -> State:
    """Notes a start of a search of which only the best is seen. Returns its state, which is on disk.
    Raises: LedgerError where a copy has gone on, or has published what it found before this one knew; then nothing may be run.
    """
    if ledger.released(FOUND) and state.done < len(state.picks):
        raise LedgerError(
            f"The ledger {ledger.path} knows that this search was released, as something else than the runs left here would give:"
            " a copy of the folder has ended before. Nothing was released."
        )
    state = replace(state, starts=(*state.starts, start))
    write(path, state)
    _note(ledger, FOUND, state.starts)
    return state


def begin_seen(path: Path, number: int, ledger: Ledger, parts: Parts) -> None:
    """Notes that a run which is seen may release from now on; in the ledger too where its noise will not come again.
    Raises: LedgerError where another folder had this start; then nothing may be released."""
    begun = {str(one): names for one, names in _begun(path).items()}
    known = [*begun.get(str(number), []), *([parts.nonce] if parts.nonce else [])]
    store.write(path / BEGUN, json.dumps(begun | {str(number): known}).encode())
    _note(ledger, f"run {number}", known)


def release(ledger: Ledger, found: str, state: State | None) -> None:
    """Notes what a search is about to publish: one thing for its charge, and nothing once a copy has gone on after this start.
    Raises: LedgerError; then nothing may be published."""
    if state and state.starts and ledger.released(_named(FOUND, len(state.starts))):
        raise LedgerError(
            f"The ledger {ledger.path} knows a later start of this search: a copy of its folder went on, and what that one finds"
            " stands for the charge. Nothing was released."
        )
    ledger.release(FOUND, found)


def _note(ledger: Ledger, what: str, known: Sequence[str]) -> None:
    for place, start in enumerate(known):  # those before too: a folder that made some up is not the one that had them
        ledger.release(_named(what, place), start)


def _named(what: str, place: int) -> str:
    return f"{what}, start {place}"
