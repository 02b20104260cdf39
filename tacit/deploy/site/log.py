"""`log.jsonl`: what a site was asked and what it answered, in words. For the site's own people; it quotes no cell of their data.

A line is a JSON object: `time` (UTC), `verdict` (answered, refused, failed, lost, late), `kind`, `run` and `round` where they are
known, and `text`."""

import contextlib
import datetime
import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

from tacit.deploy.site import replies
from tacit.deploy.site.layout import LOG
from tacit.errors import TacitError

MOST = 2_000  # characters of a line's text
SPOKEN = logging.getLogger("tacit.deploy.site")  # silent unless somebody listens, as `tacit deploy site` does


def note(folder: Path, *, verdict: str, text: str, **facts: Any) -> None:
    """Adds a line to the log, and says it to whoever listens to `SPOKEN`.

    Guarantee: on return the line has reached the disk; where it could not be written, it was printed on standard error, and
    nothing is raised: a full disk stops the ledger, and that stops the site. The text holds no control characters, so no
    message can write a second line or act on a terminal.

    Assumes: `text` quotes no cell of the rows (`discreet`), and `facts` are plain (`asked.facts`).
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    words = plain(text)
    line = json.dumps({"time": now, "verdict": verdict, **facts, "text": words})
    which = f" round {facts['round'] + 1}" if "round" in facts else ""
    SPOKEN.info("%s%s: %s", verdict, which, words)
    try:
        replies.append(folder / LOG, line)
    except OSError as error:
        with contextlib.suppress(OSError):  # the same disk may hold what standard error goes to
            print(f"{line} (not in the log: {error})", file=sys.stderr)


def plain(text: str) -> str:
    """A text that may quote what was sent, cut to `MOST` characters, with a sign in the place of every one that is not printable.

    >>> plain("refused\\x1b[2J")
    'refused�[2J'
    """
    return "".join(sign if sign.isprintable() else "�" for sign in text[:MOST])


class Plain(logging.Formatter):
    """A formatter that makes one printable line of one record, whatever a server has put into it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, a traceback included, as `plain` has it."""
        return plain(super().format(record))


def discreet(error: BaseException) -> str:
    """An error for the log, without anything of the rows.

    Of Tacit's own errors these are the words, less the cell that a BadData quotes. Of any other, whose text may quote anything,
    only its kind, the file and line that raised it, and the system's reason where it is an OSError.

    >>> discreet(ValueError("could not convert '1957-03-02' to float"))
    'ValueError'
    """
    if isinstance(error, TacitError):
        return f"{type(error).__name__}: {getattr(error, 'discreet', str(error))}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{where}{reason}"
