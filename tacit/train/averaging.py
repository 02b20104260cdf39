"""The running mean of a run's models: how much of it each keeps, and how many rounds are in it.

Post-processing, so it costs no privacy (De et al. 2022, arXiv:2204.13650, sec. 3.3). The mean forgets at a rate, and faster in the
first rounds, so that the start weighs nothing.
"""

WARM_UP = 10  # rounds: in round r the mean keeps at most r/(r + 10) of what it was


def kept(rate: float, *, round: int) -> float:
    """What the mean keeps of itself in a round.

    >>> kept(0.9, round=0), kept(0.9, round=10), kept(0.9, round=1000)
    (0.0, 0.5, 0.9)
    """
    return min(rate, round / (round + WARM_UP))


def rounds_in_it(rounds: int, *, rate: float) -> float:
    """How many rounds of independent noise are in the mean after so many: (sum g)^2/sum g^2, g_t the share that has seen round t.

    As Kish counts a weighted sample. Without a mean, all of them.

    >>> rounds_in_it(100, rate=0.0), round(rounds_in_it(100, rate=0.9), 1), round(rounds_in_it(20, rate=0.9), 1)
    (100.0, 96.0, 19.3)
    """
    share, total, squares = 1.0, 0.0, 0.0  # of the mean that comes after round t: all of it has seen the first
    for round in reversed(range(rounds)):
        seen = 1 - share * kept(rate, round=round) if rate else 1.0
        share *= kept(rate, round=round)
        total, squares = total + seen, squares + seen**2
    return total**2 / squares
