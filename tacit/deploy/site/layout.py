"""Where everything lies in a site's folder: the one file that knows the names.

    site.toml                             who the site is, and where its rows are
    budget.toml                           what its people allow
    proposal.toml                         the experiment that it is asked for, for its people to read
    experiment.toml                       an experiment of its own, for a server that knows nothing of Tacit
    ledger.db                             every charge; ledger.mark beside it says how far it had come
    ledger.db.secret                      the key of what the ledger knows of rows; without it the ledger is for reading only
    report.html                           the site's own page (`tacit report`), never for others
    log.jsonl                             what was asked and what was answered, in words
    .answer.lock                          whoever answers holds it
    canaries.secret                       what the coins of the site's own canaries follow from
    openings-GROUP.db                     which sum of GROUP's reports the site has helped to open, by round
    runs/RUN/agreement.json               the run as the site accepted it
    runs/RUN/promise.txt                  what it was promised, in words
    runs/RUN/ranges.json                  the ranges of its private columns, once they are known
    runs/RUN/held_out.jsonl               how the model did on rows that the site holds out, for its own people
    runs/RUN/canaries.json                how many canaries the site planted in the run, and the hash of their coins
    runs/RUN/canaries/                    what became of them, a file a round: `tacit audit` reads it
    runs/RUN/round-N.question             the hash of round N's one question
    runs/RUN/round-N.answer               the same hash, then the answer
    runs/RUN/opened-GROUP/round-N.answer  the same for the site's part of opening the sum of GROUP's reports
    runs/RUN/counted-QUERY/               the same for the one question and the one answer of a query
    runs/RUN/model-common/                the model that the run left, with its encoder: `tacit predict` reads it
    runs/RUN/model-own/, model-alone/     what the site made at home of it, and of the model before round 1: never for others
    runs/RUN/comparison.json              what the site's held-out rows say of the three
    runs/RUN/evaluated.jsonl              what new rows say of them

A run's folder keeps the newest round alone (`outbox`). The keys of encrypted sums are named in `key_files`, because a server has
some too; those of the line to the server in `tacit.deploy.operate`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tacit import check as words
from tacit.errors import Refused

SETTINGS, BUDGET, PROPOSAL, OWN_EXPERIMENT = "site.toml", "budget.toml", "proposal.toml", "experiment.toml"
LEDGER, LOG, LOCK = "ledger.db", "log.jsonl", ".answer.lock"
RUNS, AGREEMENT, PROMISE = "runs", "agreement.json", "promise.txt"
HELD_OUT, RANGES = "held_out.jsonl", "ranges.json"
CANARIES, COINS = "canaries.json", "canaries.secret"
COMMON, OWN, ALONE = "common", "own", "alone"  # models, in folders that begin with "model-"
COMPARISON, EVALUATED = "comparison.json", "evaluated.jsonl"
QUESTION, ANSWER = ".question", ".answer"
COUNTED = "counted-"
RUN_NAME = re.compile(r"[0-9a-f]{32}")  # it becomes a folder's name


def run_folder(site: Path, run: str) -> Path:
    """The folder of one run; nothing is made.

    Guarantee: it lies in the site's `runs/`, whatever the server calls the run.

    Raises: Refused for a name that is not 32 lower-case hexadecimal digits.

    >>> run_folder(Path("north"), "../../elsewhere")
    Traceback (most recent call last):
    tacit.errors.Refused: The server named a run that is no run's name.
    """
    if not RUN_NAME.fullmatch(run):
        raise Refused("The server named a run that is no run's name.")
    return site / RUNS / run


def model_folder(site: Path, run: str, which: str = COMMON) -> Path:
    """Where the model lies that a run left, or one that the site made of it. Raises: Refused, as `run_folder`."""
    return run_folder(site, run) / f"model-{which}"


def opened_folder(run: Path, group: str) -> Path:
    """Where a run's folder keeps the site's parts of opening the sums of a group.

    Assumes: the group is one of the run's own (`sealed.group_of`), not a word of the server's: it becomes a folder's name.
    """
    return run / f"opened-{group}"


def counted_folder(run: Path, query: str) -> Path:
    """Where a run's folder keeps the one question and the one answer of a query.

    Assumes: the query is one of the run's own, not a word of the server's: it becomes a folder's name.
    """
    return run / f"{COUNTED}{query}"


def counted(site: Path) -> Iterator[tuple[str, str]]:
    """(run, query) of every answer to a query on the site's disk, run by run."""
    for folder in sorted((site / RUNS).glob(f"*/{COUNTED}*")):
        if RUN_NAME.fullmatch(folder.parent.name) and round_files(folder, ANSWER):
            yield folder.parent.name, folder.name.removeprefix(COUNTED)


def openings_file(site: Path, group: str) -> Path:
    """The database of the sums of a group that the site has helped to open, over all runs."""
    return site / f"openings-{group}.db"


def round_file(folder: Path, round: int, kind: str) -> Path:
    """The file of a round's QUESTION or ANSWER in a run's folder.

    >>> round_file(Path("run"), 12, ANSWER).name
    'round-0000012.answer'
    """
    return folder / f"round-{round:07d}{kind}"


def round_of(path: Path) -> int:
    """The round whose file this is; the number of leading zeros does not matter.

    >>> round_of(Path("run/round-0000012.answer"))
    12
    """
    return int(path.stem.removeprefix("round-"))


def round_files(folder: Path, kind: str = "") -> list[Path]:
    """The files of a folder's rounds, of one kind or of both, oldest round first; empty where there is no such folder."""
    return sorted(folder.glob(f"round-*{kind}"), key=round_of)


def runs(site: Path) -> list[str]:
    """The runs that the site has agreed to, by name; a folder with another name than a run's is none."""
    names = (path.parent.name for path in (site / RUNS).glob(f"*/{AGREEMENT}"))
    return sorted(name for name in names if RUN_NAME.fullmatch(name))


def answers(site: Path) -> Iterator[tuple[str, int]]:
    """(run, round) of every answer to a training question on the site's disk, run by run; no openings, and no queries."""
    for folder in sorted((site / RUNS).glob("*")):
        if RUN_NAME.fullmatch(folder.name):
            yield from ((folder.name, round_of(path)) for path in round_files(folder, ANSWER))


def promises(site: Path) -> Iterator[tuple[str, str]]:
    """(run, text) of every promise that the site was given."""
    for path in sorted((site / RUNS).glob(f"*/{PROMISE}")):
        yield path.parent.name, path.read_text("utf-8").strip()


# What is wrong with a site's own file, in one sentence that follows the file's name.

MOST_CALLED = 100  # signs of an experiment's name in the files that are made of it


def wording(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """The first problem of a file that was held against `model`; for the site's own people: it repeats the value that is wrong."""
    return _after_a_colon(words.sentence(error, model, values))


def unknown(key: str, known: Iterable[str]) -> str:
    """That a file has a key that nothing reads, with the nearest one that something does.

    >>> unknown("epsilom", ["epsilon", "delta"])
    "unknown key 'epsilom'. Did you mean 'epsilon'?"
    """
    return _after_a_colon(words.unknown(key, known))


def wrong(key: str, hint: Any, value: Any) -> str:
    """That a key's value is not of the type `hint`.

    >>> wrong("data", str, 3)
    'expected data to be a text, got 3.'
    """
    return _after_a_colon(words.wrong(key, hint, value))


def called(name: str) -> str:
    """An experiment's name for the files that are made of it: programs, units, budget files, where a sign of it may be code.

    Guarantee: one line of letters, digits, spaces and `-_.`, of at most `MOST_CALLED` signs: nothing closes a text or a comment.

    >>> called("100% sure'; import os")
    '100_ sure__ import os'
    """
    return "".join(sign if sign.isalnum() or sign in " -_." else "_" for sign in name[:MOST_CALLED])


def _after_a_colon(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
