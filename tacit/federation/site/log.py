"""`log.jsonl`: what a site was asked and what it answered, in words. For the site's own people; it quotes no cell of their data."""

import contextlib
import datetime
import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.federation.site import store

NAME = "log.jsonl"
MOST = 2_000  # characters of a line's text
SPOKEN = logging.getLogger("tacit.federation.site")  # silent unless somebody listens, as `tacit deploy site` does


def note(folder: Path, *, verdict: str, text: str, **facts: Any) -> None:
    """Adds a line. A log that cannot be written is said on standard error and stops nothing: the ledger does that."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    words = plain(text)
    line = json.dumps({"time": now, "verdict": verdict, **facts, "text": words})
    place = f" round {facts['round']}" if "round" in facts else ""
    SPOKEN.info("%s%s: %s", verdict, place, words)
    try:
        store.append(folder / NAME, line)
    except OSError as error:
        with contextlib.suppress(OSError):  # the same disk may hold what standard error goes to
            print(f"{line} (not in the log: {error})", file=sys.stderr)


def plain(text: str) -> str:
    """A text that may quote what was sent, without anything that a terminal would act on, and not long."""
    return "".join(sign if sign.isprintable() else "�" for sign in text[:MOST])


class Plain(logging.Formatter):
    """One line for one record, whatever a server has put into it."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def discreet(error: BaseException) -> str:
    """An error for the log: in Tacit's own words without the cell they may quote, or only its kind and the place it came from."""
    if isinstance(error, TacitError):
        return f"{type(error).__name__}: {getattr(error, 'discreet', str(error))}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{where}{reason}"
