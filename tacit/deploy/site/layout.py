"""A site's folder: what lies where, who may read it, its settings (`site.toml`) and its log. No other file knows the names.

    site.toml, budget.toml                who the site is and where its rows are; what its people allow
    proposal.toml, experiment.toml        the experiment that it is asked for; one of its own, for a server that knows no Tacit
    ledger.db, .mark, .secret             every charge; how far it had come; the key of what it knows of rows
    log.jsonl, report.html                what was asked and answered, in words; the site's own page (`tacit report`)
    .answer.lock, canaries.secret         whoever answers holds it; what the coins of the site's own canaries follow from
    openings-GROUP.db                     which sum of GROUP's reports the site has helped to open, by round
    runs/RUN/agreement.json, promise.txt  the run as the site accepted it; what it was promised, in words
    runs/RUN/promise.json                 the same as a guarantee without numbers, where something is promised
    runs/RUN/ranges.json                  the ranges of its private columns, once they are known
    runs/RUN/held_out.jsonl               how the model did on rows that the site holds out, for its own people
    runs/RUN/canaries.json, canaries/     how many canaries were planted and the hash of their coins; what became of them
    runs/RUN/round-N.question, .answer    the hash of round N's one question; the same hash, then the answer
    runs/RUN/round-N.joined               under masks: what the site holds of the others' shares in round N
    runs/RUN/masks.secret                 what the seeds of the site's masks in a run follow from
    runs/RUN/signed-GROUP/, unmasked-GROUP/  the same for the one list of survivors that it signed, and gave shares of
    runs/RUN/opened-GROUP/, counted-QUERY/  the same for openings of the sum of GROUP's reports, and for a query
    runs/RUN/model-common/                the model that the run left, with its encoder: `tacit predict` reads it
    runs/RUN/model-own/, model-alone/     what the site made of it, and of the model before round 1: never for others
    runs/RUN/comparison.json, evaluated.jsonl  what held-out rows, and new ones, say of the three

The keys of encrypted sums are named in `keys`, because a server has some too; those of the line to the server in `operate`."""

import contextlib
import datetime
import fcntl
import hashlib
import json
import logging
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tacit import check, store
from tacit.errors import BadInput, Refused, TacitError
from tacit.experiment.extras import PersonalSection

SETTINGS, BUDGET, PROPOSAL, OWN_EXPERIMENT = "site.toml", "budget.toml", "proposal.toml", "experiment.toml"
LEDGER, LOG, LOCK = "ledger.db", "log.jsonl", ".answer.lock"
RUNS, AGREEMENT, PROMISE, PROMISED = "runs", "agreement.json", "promise.txt", "promise.json"
HELD_OUT, RANGES = "held_out.jsonl", "ranges.json"
CANARIES, COINS = "canaries.json", "canaries.secret"
COMMON, OWN, ALONE = "common", "own", "alone"  # models, in folders that begin with "model-"
MODEL, COMPARISON, EVALUATED = "model.safetensors", "comparison.json", "evaluated.jsonl"
QUESTION, ANSWER, JOINED = ".question", ".answer", ".joined"
COUNTED, SIGNED, UNMASKED, MASKS = "counted-", "signed-", "unmasked-", "masks.secret"
RUN_NAME = re.compile(r"[0-9a-f]{32}")  # it becomes a folder's name


def run_folder(site: Path, run: str) -> Path:
    """The folder of one run. Raises: Refused for a name that could lead out of `runs/`."""
    if not RUN_NAME.fullmatch(run):
        raise Refused("The server named a run that is no run's name.")
    return site / RUNS / run


def model_folder(site: Path, run: str, which: str = COMMON) -> Path:
    return run_folder(site, run) / f"model-{which}"


def counted_folder(site: Path, run: str, query: str) -> Path:
    return run_folder(site, run) / f"{COUNTED}{query}"


def round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def round_files(folder: Path, kind: str = "") -> list[Path]:
    """The files of a folder's rounds, of one kind or of both, oldest round first."""
    return sorted(folder.glob(f"round-*{kind}"), key=round_of)


def runs(site: Path) -> list[str]:
    """The runs that the site has agreed to, by name."""
    names = (path.parent.name for path in (site / RUNS).glob(f"*/{AGREEMENT}"))
    return sorted(name for name in names if RUN_NAME.fullmatch(name))


def answers(site: Path) -> Iterator[tuple[str, int | str]]:
    """(run, round) of every answer to a training request on the site's disk, then (run, query) of every counted one."""
    for folder in sorted((site / RUNS).glob("*")):
        if RUN_NAME.fullmatch(folder.name):
            yield from ((folder.name, round_of(path)) for path in round_files(folder, ANSWER))
    for folder in sorted((site / RUNS).glob(f"*/{COUNTED}*")):
        if RUN_NAME.fullmatch(folder.parent.name) and round_files(folder, ANSWER):
            yield folder.parent.name, folder.name.removeprefix(COUNTED)


def promises(site: Path) -> Iterator[tuple[str, str]]:
    """(run, words) of every run, also of another framework, the one that was promised last behind all others."""
    for path in sorted((site / RUNS).glob(f"*/{PROMISE}"), key=lambda path: path.stat().st_mtime):
        yield path.parent.name, path.read_text("utf-8").strip()


# Models that runs have left, and which of the site's own are to be made of them (`models`).


def left_models(site: Path) -> list[str]:
    """The runs that have left a model at this site, the newest model first."""
    files = {run: model_folder(site, run) / MODEL for run in runs(site)}
    times = {run: file.stat().st_mtime for run, file in files.items() if file.is_file()}
    return sorted(times, key=times.__getitem__, reverse=True)


def newest(site: Path, run: str | None) -> str:
    """The run that is named, or the one whose model came last. Raises: BadInput where it has left no model."""
    known = left_models(site)
    if not known or (run is not None and run not in known):
        which = f"that run {run} has left" if run else "of a run"
        raise BadInput(f"{site} holds no model {which}: the server sends it when the run has ended.")
    return run or known[0]


def compared(site: Path, run: str) -> dict[str, Any] | None:
    """The comparison of a run's models, if it is of the very model that the run has left. Raises: BadInput for a damaged one."""
    path = run_folder(site, run) / COMPARISON
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        return found if found["common"] == fingerprint(site, run) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{path} is damaged: remove it, and tacit deploy site {site} --adapt makes it anew.") from None


def fingerprint(site: Path, run: str) -> str:
    return hashlib.sha256((model_folder(site, run) / MODEL).read_bytes()).hexdigest()


def due(site: Path) -> list[str]:
    """The runs whose own models are still to be made, or made anew. Raises: BadInput."""
    if wanted(read_settings(site)).kind is None:
        return []
    return [run for run in left_models(site) if compared(site, run) is None]


# `site.toml`. No word of `personal` decides whether a request is answered; it is checked by `wanted`.

TEXTS = ("name", "server", "data", "model", "device")
KEYS = (*TEXTS, "examples", "shape", "held_out", "canaries", "personal")  # the others are checked where they are used


def read_settings(site: Path) -> dict[str, Any]:
    """`site.toml`: a name, no unknown key, and texts where texts belong. Raises: BadInput, naming the file and the key."""
    path = site / SETTINGS
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{site} is no site's folder, as it holds no site.toml: name one, as in sites/NAME.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}).") from None
    if not isinstance(settings.get("name"), str):
        raise BadInput(f'{path} does not name the site: add name = "...".')
    for key, value in settings.items():
        if key not in KEYS:
            raise BadInput(f"{path}: {after_colon(check.unknown(key, KEYS))}")
        if key in TEXTS and not isinstance(value, str):
            raise BadInput(f"{path}: {after_colon(check.wrong(key, str, value))}")
    return settings


def own_path(key: str, site: Path, settings: dict[str, Any]) -> str | None:
    """The path that site.toml has under a key, relative to the site's folder; None where it has none."""
    path = settings.get(key)
    return None if path is None else str(site / Path(str(path)).expanduser())


def wanted(settings: dict[str, Any]) -> PersonalSection:
    """How the site makes its own models: `[personal]` in site.toml; its `kind` is None where nothing is said. Raises: BadInput."""
    said = settings.get("personal")
    if said is None:
        return PersonalSection()
    if not isinstance(said, dict) or "kind" not in said:
        raise BadInput('Expected [personal] in site.toml to name a kind, as in kind = "mean-regularised".')
    try:
        chosen = PersonalSection(**said)
    except ValidationError as error:
        raise BadInput(f"[personal] in site.toml: {wording(error, PersonalSection, said)}") from None
    if chosen.during:
        raise BadInput(
            "Own models during training are for simulations: leave out personal.when in site.toml, and they are made after the run."
        )
    if "held_out" not in settings:
        raise BadInput(
            "site.toml asks for own models ([personal]) and holds out no rows to judge them by: add held_out = 0.2 above it."
        )
    return chosen


def wording(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """The first problem of a file that was held against `model`; it repeats the value that is wrong."""
    return after_colon(check.sentence(error, model, values))


def after_colon(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def called(name: str) -> str:
    """An experiment's name for files where a sign of it may be code: one short line of letters, digits, spaces and `-_.`."""
    return "".join(sign if sign.isalnum() or sign in " -_." else "_" for sign in name[:100])


# How files are written: for the owner alone (0700, 0600) whatever the umask, whole or not at all. Kept answers of central DP carry
# no noise, and logs name the site's data.

FOLDER, FILE = 0o700, store.OWNER
OTHERS = 0o077
MOST_LOGGED = 2_000  # characters of a line of a site's log

write = partial(store.write, mode=FILE, sync_name=True)


def make_folder(path: Path) -> Path:
    """Makes a folder, and those above it that are missing, for the owner alone; on return the new names have reached the disk."""
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(mode=FOLDER, exist_ok=True)
            folder.chmod(FOLDER)
            store.sync(folder.parent)
    return path


def tighten(folder: Path) -> None:
    """Takes from group and others whatever they could do with a folder and what lies in it, but links and other users' files."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if not path.is_symlink() and mode & OTHERS:
                path.chmod(mode & ~OTHERS & 0o7777)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process or thread answers for the folder. The lock of a process that was killed is free at once."""
    file = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, FILE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


# `log.jsonl`, for the site's own people. A line is a JSON object: `time` (UTC), `verdict` (answered, refused, failed, lost, late,
# charged), `kind`, `run` and `round` where they are known, and `text`, which quotes no cell of their data.

SPOKEN = logging.getLogger("tacit.deploy.site")  # silent unless somebody listens, as `tacit deploy site` does


def note(folder: Path, *, verdict: str, text: str, **facts: Any) -> None:
    """Adds a line to the log, and says it to whoever listens to `SPOKEN`. Raises nothing: a full disk stops the ledger.

    Assumes: `text` quotes no cell of the rows (`discreet`), and `facts` are plain (`requests.facts`).
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    words = check.printable(text, MOST_LOGGED)
    line = json.dumps({"time": now, "verdict": verdict, **facts, "text": words})
    SPOKEN.info("%s%s: %s", verdict, f" round {facts['round'] + 1}" if "round" in facts else "", words)
    try:
        store.append(folder / LOG, line)
    except OSError as error:
        with contextlib.suppress(OSError):  # the same disk may hold what standard error goes to
            print(f"{line} (not in the log: {error})", file=sys.stderr)


class Plain(logging.Formatter):
    """A formatter that makes one printable line of one record, whatever a server has put into it."""

    def format(self, record: logging.LogRecord) -> str:
        return check.printable(super().format(record), MOST_LOGGED)


def discreet(error: BaseException) -> str:
    """An error for the log, without anything of the rows: of Tacit's own the words, less a quoted cell; of any other only its kind,
    the file and line that raised it, and the system's reason where it is an OSError.
    """
    if isinstance(error, TacitError):
        return f"{type(error).__name__}: {getattr(error, 'discreet', str(error))}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{where}{reason}"
