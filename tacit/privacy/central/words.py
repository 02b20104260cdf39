"""Central DP in words."""

from tacit.privacy.central.mechanism import CohortGaussian
from tacit.privacy.guarantee import Words

MODELS_ONLY = "everybody who sees the models (the server is trusted, and who took part in which round stays secret)"


def promised(mechanism: CohortGaussian) -> Words:
    """What every client is promised, by cohorts of random or of fixed size."""
    m = mechanism
    if m.sampler == "fixed":
        sampler = f"cohorts of {m.cohort} of {m.population} clients, without replacement"
        return Words(MODELS_ONLY, "replace one client by another", sampler)
    sampler = f"Poisson cohorts, each of {m.population} clients with probability {m.rate:.4g} in every round"
    return Words(MODELS_ONLY, "add or remove one client", sampler)
