"""A search's folder: `base.toml` and `tune.toml` (what was asked), `search.json` (its name in the ledger), the ledger, and `best`.

`best` is the whole result, and all that is published: settings, model, how rows are read, score and promise. While a search goes on
there is `secret` (tacit/tuning/secret.py); where all runs are seen, they stay in `runs`.
"""

import json
import os
import shutil
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tacit.data import encoder_file
from tacit.engine.folder import Folder, locked, replace, set_aside
from tacit.engine.neighbours import SEARCH
from tacit.errors import BadInput, LedgerError, RunExists
from tacit.experiment.toml import dumps
from tacit.privacy.ledger.before import Before

ASKED, BASE, BEST, RUNS, SUMMARY = "tune.toml", "base.toml", "best", "runs", "summary.json"
BEGUN = "begun.json"  # of runs that are seen: those that may have released something
PUBLISHED = ("experiment.toml", "model.safetensors", encoder_file.NAME)  # of the best run, as they are


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
        set_aside(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path} cannot be made a folder ({error.strerror}): choose another --out.") from None
    return locked(path)


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
        replace(path / SEARCH, json.dumps({"run": uuid.uuid4().hex, "ledger": way, **noted}).encode())
        for name, text in texts.items():  # what was asked comes last: with it there is a search
            replace(path / name, text.encode())
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
    replace(path / BEGUN, json.dumps(known | {str(number): list(starts)}).encode())


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
        replace(path / BEGUN, b"{}")  # before there are any runs
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
        replace(made / name, (run / name).read_bytes())
    replace(made / SUMMARY, json.dumps(summary, indent=2).encode())
    began = (path / SEARCH).stat().st_mtime
    for file in (*made.iterdir(), made):
        os.utime(file, (began, began))
    made.rename(path / BEST)
