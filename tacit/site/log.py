"""`log.jsonl`: what a site was asked and what it answered, in words. For the site's own people; it may name its data."""

import contextlib
import datetime
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

NAME = "log.jsonl"
SPOKEN = logging.getLogger("tacit.site")  # silent unless somebody listens, as `tacit deploy site` does


def note(folder: Path, *, verdict: str, text: str, **facts: Any) -> None:
    """Adds a line. A log that cannot be written is said on standard error and stops nothing: the ledger does that."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": now, "verdict": verdict, **facts, "text": text})
    place = f" round {facts['round']}" if "round" in facts else ""
    SPOKEN.info("%s%s: %s", verdict, place, text)
    try:
        with (folder / NAME).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):  # the same disk may hold what standard error goes to
            print(f"{line} (not in the log: {error})", file=sys.stderr)
