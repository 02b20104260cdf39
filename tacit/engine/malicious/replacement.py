"""`replacement`: model replacement (Bagdasaryan et al. 2020, How To Backdoor Federated Learning, arXiv:1807.00459): train on rows
of which some carry the trigger, and multiply the update so that it outweighs the others."""

from dataclasses import dataclass

from tacit.engine.malicious import Malice


@dataclass(frozen=True)
class replacement(Malice):
    """The update of poisoned training, times N/m unless `boost` is said: eq. 3 of the paper with gamma = N/m for m attackers."""
