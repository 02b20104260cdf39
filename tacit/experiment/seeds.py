"""Which seed each kind of chance follows: its own where one is said, else `run.seed`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tacit.experiment import Experiment


@dataclass(frozen=True)
class Seeds:
    """The seeds of an experiment as they count.

    `data` decides who gets which rows and which are test rows, held out or kept; `epsilon` who draws which budget; `model` the
    initial weights; `noise`, where it is seeded, noise, cohorts and batches. What is left (who is malicious, what clients draw for
    models of their own) follows `run.seed`.

    Guarantee: an experiment that says none of them has `run.seed` in the place of each. No two releases share noise because they
    share a seed: the key of noise is the digest of the whole release (tacit/build/release.py), in which every one of these stands.

    >>> from tacit.experiment import Experiment
    >>> Experiment(data={"seed": 7}, run={"seed": 3}).seeds
    Seeds(data=7, epsilon=3, model=3, noise=3)
    """

    data: int
    epsilon: int
    model: int
    noise: int

    @classmethod
    def of(cls, experiment: "Experiment") -> Self:
        """The seeds that an experiment says, with `run.seed` for those that it does not."""
        said = (experiment.data.seed, experiment.privacy.epsilon_seed, experiment.model.seed, experiment.run.noise_seed)
        return cls(*(experiment.run.seed if seed is None else seed for seed in said))
