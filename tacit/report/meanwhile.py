"""`report.html` while a run goes on, so that one that is killed has a page: before its first round, after two seconds, then every
now and then.

Guarantee: a run is not lost by its page, nor slowed by more than a twentieth and one page (some hundredths of a second) before the
first round: after a page it works at least twenty times as long as that took before the next. One that raises, or is stopped by
Ctrl-C or SIGTERM, leaves a last page, however short it was. A page of an unfinished run says so, and when it was made.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.engine.loop import Observer
from tacit.report.page import write_page

FIRST_SECONDS = 2.0  # a shorter run pays for two pages: before its first round, and at its end
EVERY_SECONDS = 20.0  # between two pages, at least
SHARE = 20  # and this many times what the last one took


@contextlib.contextmanager
def page_meanwhile(
    folder: Path, observe: Observer | None, *, on: bool = True, opened: bool = True
) -> Iterator[Observer]:
    """An observer that also keeps the folder's page; what raises within leaves a last one.

    Where the folder is not `opened` yet, it may hold another run, and whoever opens it makes the first page (`Pages.begin`).
    """
    pages = Pages(folder)
    if on and opened:
        pages.begin()

    def both(record: dict[str, Any]) -> None:
        if observe:
            observe(record)
        if on:
            pages.keep()

    try:
        yield both
    except BaseException:
        if on:
            pages.keep(now=True)
        raise


class Pages:
    """The page of one folder, made again when it is due."""

    def __init__(self, folder: Path):
        self._folder, self._due = folder, 0.0

    def begin(self) -> None:
        """Makes the page of a run that is about to go on; the next is due when there is something to see."""
        self._make(FIRST_SECONDS)

    def keep(self, *, now: bool = False) -> None:
        """Makes the page where it is due, or now. One that cannot be made is left out."""
        if now or time.monotonic() >= self._due:
            self._make(EVERY_SECONDS)

    def _make(self, least: float) -> None:
        """Makes it; the next is due after `least` seconds, or later where this one took long."""
        began = time.monotonic()
        with contextlib.suppress(Exception):  # whatever lies in the folder: it is the run that must not be lost
            if (self._folder / "experiment.toml").exists():
                write_page([self._folder], self._folder / "report.html", quick=True)
        ends = time.monotonic()
        self._due = ends + max(least, SHARE * (ends - began))
