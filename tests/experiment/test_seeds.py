"""A seed for each kind of chance: it moves what it is for and nothing else, and stands for `run.seed` where it is not said."""

import numpy as np
import pytest

from tacit.engine.assemble import build
from tacit.engine.ledgers import population_id
from tacit.engine.release import experiment_text
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.extras import split

SMALL = {
    "data": {"clients": 4, "examples_per_client": 20},
    "privacy": {"kind": "local", "epsilon": "uniform"},
    "train": {"rounds": 2, "local_steps": 1, "sampling_rate": 0.5},
    "run": {"seed": 3},
}
OWN = {kind: f"seed.{kind}" for kind in ("data", "model", "noise")}


def experiment(**said):
    """The small experiment with keys said as section__key=value."""
    values = {name: dict(part) for name, part in SMALL.items()}
    for key, value in said.items():
        section, _, name = key.partition("__")
        values.setdefault(section, {})[name] = value
    return Experiment(**values)


def facts(made):
    """What each seed decides about, of one experiment."""
    parts = build(made)
    return {
        "data": (parts.population.digest(), parts.population.epsilons.tolist()),
        "model": parts.params.tolist(),
        "noise": parts.releases.digest,
    }


@pytest.mark.parametrize("which", OWN)
def test_each_seed_moves_what_it_is_for_and_the_noise_and_nothing_else(which):
    before, after = facts(experiment()), facts(experiment(**{OWN[which].replace(".", "__"): 8}))
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {which, "noise"}  # another release has other noise, always


def test_with_all_but_the_noise_pinned_the_seed_of_the_run_moves_the_noise_alone():
    pinned = {"seed__data": 0, "seed__model": 0}
    one, two = (facts(experiment(**pinned, run__seed=seed)) for seed in (1, 2))
    assert {name for name in one if one[name] != two[name]} == {"noise"}


def test_a_seed_that_is_not_said_is_that_of_the_run_and_leaves_every_text_as_it_was():
    made = experiment()
    assert made.seeds._asdict() == dict.fromkeys(OWN, 3)
    assert not any(name in text for text in (made.toml(), experiment_text(made)) for name in ("[seed]", '"seed": {'))
    assert made.toml().count("seed =") == 1


def test_said_seeds_draw_what_the_seed_of_a_run_would_have_drawn():
    said, same = facts(experiment(seed__data=9, seed__model=9)), facts(experiment(run__seed=9))
    assert [said[name] for name in ("data", "model")] == [same[name] for name in ("data", "model")]


def test_a_ledger_belongs_to_the_rows_in_their_hands_however_their_seed_was_said():
    def ledger(**said):
        made = experiment(**said)
        return population_id(made, build(made).population)

    assert ledger(run__seed=5) == ledger(run__seed=1, seed__data=5) == ledger(run__seed=2, seed__data=5, seed__model=7)
    assert ledger(seed__data=5) != ledger(seed__data=6)


def test_which_records_are_held_out_follows_the_seed_of_the_data():
    def held(**said):
        made = experiment(data__held_out=0.3, **said)
        return build(made).population.held.digest(), split(made)

    assert held(run__seed=5) == held(run__seed=1, seed__data=5)
    assert all(np.not_equal(held(seed__data=5), held(seed__data=6)))


@pytest.mark.parametrize("key", [*OWN.values()])
@pytest.mark.parametrize("value", ["a", -1, 1.5, True])
def test_a_seed_that_is_no_whole_number_from_zero_on_is_refused_by_its_key(key, value):
    with pytest.raises(BadInput, match=key):
        experiment(**{key.replace(".", "__"): value})


def test_a_seed_of_noise_that_the_operating_system_draws_is_refused():
    with pytest.raises(BadInput, match=r"leave out seed\.noise"):
        experiment(seed__noise=1, run__randomness="os")
