"""What the server says while it runs: `flwr run --stream` shows it."""

import logging
from collections.abc import Callable
from typing import Any

from flwr.supercore.logger import FLOWER_LOGGER

from tacit.engine.history import History
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.report.closing import facts
from tacit.report.page import write_page
from tacit.report.progress import round_line


def observer(experiment: Experiment) -> Callable[[dict[str, Any]], None]:
    """Prints a line for every round, from the same record that is in `rounds.jsonl`."""
    return lambda record: print(round_line(record, experiment), flush=True)


def ending(history: History) -> None:
    """Writes the report's page, and says what came out, where it is, and what was promised.

    A page that cannot be made is said and stops nothing: the run has ended.
    """
    lines = [f"{name}: {value}" for name, value in facts(history.summary).items()]
    page = history.out / "report.html"
    try:
        write_page([history.out], page)
    except TacitError as error:
        lines.append(f"no report page: {error}")
    else:
        lines.append(f"report: {page}")
    print("\n".join([*lines, history.sentence]), flush=True)


class _NotARefusal(logging.Filter):
    """Lets everything pass but the traceback of a refusal, which has been said in its own words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], TacitError))


def say_refusals_once() -> None:
    """Keeps Flower from printing a traceback below a refusal that is one sentence; those of other errors stay."""
    if not any(isinstance(known, _NotARefusal) for known in FLOWER_LOGGER.filters):
        FLOWER_LOGGER.addFilter(_NotARefusal())


def in_flowers_words(error: TacitError) -> str:
    """A refusal with the options of `tacit deploy up` as those of `flwr run`.

    >>> in_flowers_words(TacitError("Go on with --resume."))
    "Go on with --run-config 'resume=true'."
    """
    words = str(error)
    for option in ("resume", "force"):
        words = words.replace(f"--{option}", f"--run-config '{option}=true'")
    return words
