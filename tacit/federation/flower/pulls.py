"""How long a server waits for the content of an answer that a site has announced: a part of the round's time, not two hours.

Flower takes in one answer after the other. A site that dies in the middle of sending, or that announces and never sends, held all
others up until its upload was given up: three minutes, or, for one that sends a little now and then, two hours. Then it is lost,
like an answer that never came, and asked again.
"""

from functools import partial
from typing import Any

from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

PART = 0.25  # of a round's seconds: a long answer on a slow line has to arrive in it
LEAST, MOST = 15.0, 600.0


def bound_pulls(round_seconds: float) -> float:
    """Bounds the wait for an answer's content from now on in this process, and returns the bound in seconds.

    A quarter of a round's seconds, but no less than `LEAST` and no more than `MOST`. Assumes: flwr's grid looks `pull_objects`
    up in its own module whenever it pulls, as 1.41 and 1.42 do.
    """
    seconds = min(max(PART * round_seconds, LEAST), MOST)
    words: Any = vars(http_grid)
    words["pull_objects"] = partial(pull_objects, max_time=seconds)
    return seconds
