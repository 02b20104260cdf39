"""`status.json`: how far a server has come and who has answered it, for the people who operate it (`tacit report --live`).

It is the server's view: names, and reasons in the sites' own words, which are printable and cut short. Who is asked is a secret of
the server under central DP, so there no name is written while a round goes on.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.engine.folder import Folder
from tacit.engine.folder import replace as write_file
from tacit.engine.run_files import STATUS
from tacit.federation.flower.gather import AWAY, Heard, unanswered

EVERY_SECONDS = 1.0  # between two words about one round


@dataclass
class Status:
    """What a server says of itself: `began` tells its word from that of one before it, on its way out."""

    began: float
    sites: Sequence[str] = ()
    missing: Sequence[str] = ()  # who has not joined yet
    asked: dict[str, Any] | None = None  # the last round that was asked, and who has answered
    spent: Mapping[str, float] = field(default_factory=dict)  # what the sites' own ledgers say
    _said: float = 0.0

    def write(self, folder: Folder, state: str, text: str) -> None:
        """Replaces status.json: the state (waiting, running, finished, failed), words about it, the process, and the sites."""
        record = {"state": state, "text": text, "pid": os.getpid(), "began": self.began, "time": time.time()}
        record |= {
            "sites": list(self.sites),
            "missing": list(self.missing),
            "asked": self.asked,
            "spent": dict(self.spent),
        }
        write_file(folder.path / STATUS, json.dumps(record).encode())
        self._said = time.monotonic()

    def wait(self, folder: Folder, missing: Sequence[str]) -> None:
        """Writes who is waited for."""
        self.missing = missing
        self.write(folder, "waiting", f"for {', '.join(missing)}" if missing else "for everybody to agree")

    def hear(
        self, folder: Folder, round: int, nodes: Mapping[str, int | None], heard: Heard, *, seconds: float | None
    ) -> None:
        """Writes who of a round's sites (their nodes by name) has answered or refused so far; `seconds` is how long they were
        waited for, once the round is over.

        Until then it speaks once a second at most: a round of many sites has better things to do. A disk that takes no word more
        stops nothing here: the ledger will.
        """
        over = seconds is not None
        if not over and time.monotonic() - self._said < EVERY_SECONDS:
            return
        self.asked = {"round": round, "over": over} | heard_of(nodes, heard, seconds=seconds)
        with contextlib.suppress(OSError):
            self.write(folder, "running", f"round {round + 1}")


def heard_of(nodes: Mapping[str, int | None], heard: Heard, *, seconds: float | None) -> dict[str, Any]:
    """Who answered, who refused and who is silent, by name; why, where that is known.

    >>> heard_of({"north": 1, "coast": None, "hill": 2}, Heard(answers={1: ({}, b"")}), seconds=9.0)
    {'answered': ['north'], 'refused': {}, 'silent': {'coast': 'is not connected', 'hill': 'did not answer in 9 s'}}
    """
    answered = [name for name, node in nodes.items() if node in heard.answers]
    refused = {name: heard.refusals[node] for name, node in nodes.items() if node in heard.refusals}
    silent = {
        name: AWAY if node is None else "" if seconds is None else unanswered(heard.lost.get(node, ""), seconds)
        for name, node in nodes.items()
        if name not in answered and name not in refused
    }
    return {"answered": answered, "refused": refused, "silent": silent}
