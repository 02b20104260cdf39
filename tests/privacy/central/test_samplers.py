"""Who is drawn, how it is priced and what is promised of it come from one sampler, whichever it is."""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
from trained import changed

import tacit
from tacit.engine.assemble import build
from tacit.engine.loop import BudgetTracker
from tacit.errors import BadInput
from tacit.experiment.privacy import PrivacySection
from tacit.privacy import samplers
from tacit.privacy.central.kind import CohortGaussian
from tacit.privacy.plan import kind_of
from tacit.random import seeded

CENTRAL = {
    "name": "central",
    "data": {"clients": 10, "examples_per_client": 30},
    "train": {"rounds": 4, "clients_per_round": 5, "local_steps": 1, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": 6.0, "clip": 0.5},
    "run": {"workers": 1},
}
OWN = """
from dataclasses import dataclass
from tacit.privacy.central.kind import Central
from tacit.privacy.samplers import Poisson

@dataclass(frozen=True)
class Rare(Poisson):
    lot: int = 7

class Own(Central):
    def sampler(self, experiment, clients):
        return Rare(clients, 1)

class Plain(Central): ...
"""


def central(**changes):
    return changed(CENTRAL, changes)


@dataclass(frozen=True)
class Rarer(samplers.Poisson):
    """Coins that fall half as often, drawn and priced alike."""

    share: float = 0.5

    @property
    def rate(self):
        return self.share * self.cohort / self.population


@dataclass(frozen=True)
class Halves(samplers.Cyclic):
    """A random half of the clients in every round, in public: nobody's slots are a cycle apart."""

    groups: tuple[int, ...] = ()
    cycle: int = 2

    def __post_init__(self):
        pass

    def scheduled(self, round):
        return sorted(np.random.default_rng(round).permutation(self.population)[: self.population // 2].tolist())

    def slots(self, index, *, rounds):
        return rounds


def test_a_sampler_that_takes_the_name_is_the_one_that_draws_and_is_priced(monkeypatch):
    before = build(central()).plan
    monkeypatch.setitem(samplers.SAMPLERS, "poisson", Rarer)
    parts = build(central())
    plan = parts.plan
    assert plan.sampler is plan.mechanism.cohorts
    assert type(plan.sampler) is Rarer
    assert plan.mechanism.event() == Rarer(10, 5).event(plan.mechanism.noise_multiplier)
    assert plan.mechanism.event().sampling_probability == 0.25
    assert plan.mechanism.noise_multiplier < before.mechanism.noise_multiplier  # a smaller rate takes less noise
    assert plan.expected_weight == 2.5
    assert plan.key(None) != before.key(None)
    assert "share=0.5" in plan.key(None)
    tracker = BudgetTracker(parts, None)
    drawn = [len(tracker.draw(round, seeded(0)) or []) for round in range(400)]
    assert 2.2 < np.mean(drawn) < 2.8  # 2.5 of ten, not 5


def test_the_key_of_the_noise_of_poisson_cohorts_says_all_of_them():
    said = repr(CohortGaussian(1.0, 0.5, samplers.Poisson(40, 10)))
    assert said.startswith("CohortGaussian(noise_multiplier=1.0, clip=0.5, population=40, cohort=10, sampler='poisson'")
    others = [samplers.Poisson(41, 10), samplers.Poisson(40, 11), Rarer(40, 10), Rarer(40, 10, 0.4)]
    assert len({said, *(repr(CohortGaussian(1.0, 0.5, other)) for other in others)}) == 5


def test_public_cohorts_are_never_promised_as_a_secret_nor_secret_ones_as_public(monkeypatch):
    for name, section in (("poisson", {}), ("cyclic", {"sampler": "cyclic"})):
        experiment = central(privacy=section)
        assert samplers.named(name).charges_all is experiment.secret_cohorts
        assert experiment.privacy.public_cohorts is not experiment.secret_cohorts
        build(experiment)
    monkeypatch.setitem(samplers.SAMPLERS, "poisson", Halves)
    with pytest.raises(BadInput, match=r"'poisson' are public, and \[privacy\] says secret"):
        build(central())
    monkeypatch.setitem(samplers.SAMPLERS, "cyclic", Rarer)
    with pytest.raises(BadInput, match=r"'cyclic' are secret, and \[privacy\] says public"):
        build(central(privacy={"sampler": "cyclic"}))


def test_public_cohorts_other_than_a_cycle_are_refused_whatever_they_are_called(monkeypatch):
    with pytest.raises(BadInput, match="priced for secret cohorts, and those of Halves are public"):
        CohortGaussian(1.0, 0.5, Halves(10, 5))
    monkeypatch.setitem(samplers.SAMPLERS, "cyclic", Halves)
    with pytest.raises(BadInput, match="those of Halves are public"):
        build(central(privacy={"sampler": "cyclic"}))


def test_noise_across_rounds_is_refused_for_slots_that_are_not_a_cycle_apart(monkeypatch):
    experiment = central(privacy={"sampler": "cyclic"})
    banded, population = kind_of(experiment), build(experiment).population
    monkeypatch.setitem(samplers.SAMPLERS, "cyclic", Halves)
    with pytest.raises(BadInput, match="a whole cycle apart"):
        banded.plan(experiment, population, size=10)


def test_a_public_sampler_that_does_not_say_whose_slot_a_round_is_cannot_be_written():
    whole = {name: getattr(samplers.Cyclic, name) for name in ("scheduled", "slots")}
    assert not type("Whole", (samplers.Poisson,), {"charges_all": False, **whole}).charges_all
    for lacking in whole:
        left = {name: method for name, method in whole.items() if name != lacking}
        with pytest.raises(TypeError, match=f"needs `{lacking}`"):
            type("Forgetful", (samplers.Poisson,), {"charges_all": False, **left})


@pytest.fixture
def own_kinds(tmp_path, monkeypatch):
    (tmp_path / "own_central.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_central", None)


def foreign(name, **train):
    privacy = {"kind": f"own_central:{name}", "unit": "client", "epsilon": 6.0, "clip": 0.5}
    return tacit.Experiment(**CENTRAL | {"train": CENTRAL["train"] | train, "privacy": privacy})


def test_a_central_kind_of_ones_own_draws_and_prices_with_the_sampler_that_it_returns(own_kinds):
    plan = build(foreign("Own")).plan
    assert type(plan.sampler).__name__ == "Rare"
    assert (plan.sampler.rate, plan.mechanism.event().sampling_probability) == (0.1, 0.1)
    assert type(build(foreign("Plain")).plan.sampler) is samplers.Poisson


def test_no_kind_whose_cohorts_are_secret_waits_for_more_clients(own_kinds):
    build(foreign("Plain", min_clients=1))
    with pytest.raises(BadInput, match=r"give away who took part\): leave out train.min_clients"):
        build(foreign("Plain", min_clients=2))


def test_what_a_section_says_of_its_cohorts_is_no_setting():
    assert "public_cohorts" not in PrivacySection.model_fields
    with pytest.raises(BadInput, match="public_cohorts"):
        central(privacy={"public_cohorts": True})
