"""What the server says while it runs: `flwr run --stream` shows it."""

import logging
from collections.abc import Callable
from typing import Any

from flwr.supercore.logger import FLOWER_LOGGER

from tacit.engine.simulate import History
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.report.page import write_page
from tacit.report.progress import facts, round_line


def observer(experiment: Experiment) -> Callable[[dict[str, Any]], None]:
    """Prints a line for every round."""
    return lambda record: print(round_line(record, experiment), flush=True)


def ending(history: History) -> None:
    """Makes the page, and says what came out and where it is."""
    lines = [f"{name}: {value}" for name, value in facts(history.summary).items()]
    place = history.out / "report.html"
    try:
        write_page([history.out], place)
    except TacitError as error:
        lines.append(f"no report page: {error}")
    else:
        lines.append(f"report: {place}")
    print("\n".join([*lines, history.sentence]), flush=True)


class _NotARefusal(logging.Filter):
    """Lets everything pass but the traceback of a refusal, which has been said in its own words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], TacitError))


def say_refusals_once() -> None:
    """Keeps Flower from printing a traceback below a refusal that is one sentence."""
    if not any(isinstance(known, _NotARefusal) for known in FLOWER_LOGGER.filters):
        FLOWER_LOGGER.addFilter(_NotARefusal())


def in_flowers_words(error: TacitError) -> str:
    """A refusal with the options of `tacit deploy up` as those of `flwr run`."""
    words = str(error)
    for option in ("resume", "force"):
        words = words.replace(f"--{option}", f"--run-config '{option}=true'")
    return words
