"""One round at a time, on demand, so that contenders in processes of their own can take turns within one run.

A line on stdin starts a round; a line of JSON on stdout ends it, with the seconds in between as the contender itself saw them.
"""

import json
import os
import sys
import time


class Turns:
    """The rounds of one contender: call `wait` before each round and `done` after it."""

    def __init__(self, rounds: int):
        self._left, self._asked, self._began = rounds, False, 0.0
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to the log and cannot be taken for a result

    def wait(self) -> None:
        """Returns when the next round may start; at once after the last. Leaves the process if there is no next turn."""
        if not self._asked:
            self._asked = True
            self._say(ready=True)
        if self._left and not sys.stdin.readline():
            sys.exit("no more turns")
        self._began = time.perf_counter()

    def done(self, **more: float) -> None:
        """Reports the round that began when `wait` returned."""
        self._left -= 1
        self._say(seconds=time.perf_counter() - self._began, **more)

    def _say(self, **record: float) -> None:
        self._out.write(json.dumps(record) + "\n")
        self._out.flush()
