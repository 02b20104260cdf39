"""Local DP in words."""

from tacit.privacy.guarantee import EMPTIED, Words
from tacit.types import Unit

SIGHT = "the server, the other clients and everybody who sees updates or models"


def promised(unit: Unit) -> Words:
    """What a client is promised, whose records or whose whole data are the unit."""
    if unit == "client":
        return Words(SIGHT, EMPTIED, "whole updates (nothing is claimed for choosing clients at random)")
    sampler = "Poisson batches within a client (nothing is claimed for choosing clients at random)"
    return Words(SIGHT, "add or remove one record of one client", sampler)
