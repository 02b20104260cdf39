"""Central DP with public cohorts: the server is trusted with updates, and nothing rests on who took part staying secret."""

from tacit.data.population import Population
from tacit.experiment import Experiment
from tacit.privacy.banded.plan import BandedPlan, banded_plan
from tacit.privacy.plan import Plan


class BandedCentral:
    """The kind `central` with `train.sampler = "cyclic"`: client-level DP at a trusted server whose cohorts everybody may know.

    The server sees every clipped update; whoever sees the models sees one noised sum a round, and may know whose it is. A client
    pays in the rounds in which it takes part.
    """

    plans = BandedPlan

    def plan(self, experiment: Experiment, population: Population, *, size: int, own: int | None = None) -> Plan:
        """One noise for all clients, from their one budget. Raises BadInput as `banded_plan`."""
        return banded_plan(experiment, population)

    def refuse_at_site(self, experiment: Experiment) -> None:
        """Nothing: that the server is trusted is what the kind says, and a site accepts it by accepting the experiment."""


KIND = BandedCentral()
