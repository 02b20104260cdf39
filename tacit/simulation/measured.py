"""Whether a stack of clients is faster here than each by itself: some clients of a round, trained in both ways, by the clock.

Who sees what: nobody anything. The streams are those of a draw of their own, the answers are dropped, and nothing is charged.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from tacit.build.parts import Parts
from tacit.engine.passing import asked
from tacit.engine.trainers import make
from tacit.engine.trainers.processes import Trainer
from tacit.errors import TacitError

MOST = 64  # clients that are tried: a larger cohort costs in proportion
TURNS = 3  # of which the first fills caches and does not count
LONG = 2.0  # seconds: a turn that takes longer is not slow because of caches, and is not repeated
SHORTEST = 1e-9  # seconds
DRAW = "measured"  # in the key of every stream, so that no run has them

Clock = Callable[[], float]


def gain(parts: Parts, *, clock: Clock = time.perf_counter) -> float:
    """How many times as fast a stack trains some clients as processes side by side do; 0 where training them fails.

    Raises: Unsupported where they cannot be stacked.
    """
    trial = replace(parts, draw=DRAW)
    stacked = make.stacked(trial)
    try:
        with ExitStack() as stack:  # processes are forked before a stack uses threads
            apart = _seconds(trial, make.each_by_itself(trial, stack), clock)
        return apart / max(_seconds(trial, stacked, clock), SHORTEST)
    except TacitError:  # the run itself will say what is wrong
        return 0.0


def _seconds(parts: Parts, trainer: Trainer, clock: Clock) -> float:
    """The best time of a few turns."""
    count = len(parts.population)
    places = sorted({k * count // MOST for k in range(MOST)} if count > MOST else range(count))[: parts.cohort]
    cohort = [parts.population[place] for place in places]
    state = parts.algorithm.init(parts.params)
    times: list[float] = []
    while len(times) < TURNS:
        began = clock()
        for _ in asked(trainer, parts.algorithm, state, 0, cohort)[1]:
            pass
        times.append(clock() - began)
        if times[-1] > LONG:
            break
    return min(times[1:] or times)
