"""The names that an audit is given: trainers and bugs. What they stand for is in `trainers` and `plants`: nothing is loaded."""

from tacit import check
from tacit.errors import BadInput

TRAINERS = ("one by one", "side by side", "stacked", "site")
PLANTS = ("noise=0.95", "reuse", "clip", "layer", "sampling", "divisor", "weights", "share")


def noise_factor(plant: str) -> float | None:
    """The factor of `noise=F`, below 1; None for a bug without one. Raises BadInput for a name that there is not.

    >>> noise_factor("noise=0.5"), noise_factor("clip")
    (0.5, None)
    """
    word, _, factor = plant.partition("=")
    if word == "noise" and factor:
        try:
            number = float(factor)
        except ValueError:
            raise BadInput(
                f"Expected --plant noise=F with a factor below 1, as in noise=0.95; got {plant!r}."
            ) from None
        if not 0 <= number < 1:
            raise BadInput(f"Expected --plant noise=F with a factor of at least 0 and below 1, got {number:g}.")
        return number
    check.one_of(PLANTS, **{"--plant": plant})
    return None
