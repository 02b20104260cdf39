"""What joining may be worth, before anybody trains: a closed form, its slow twin, and the experiment's own noise in it."""

import itertools
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.errors import BadInput
from tacit.personal.gain import Sites, expected, simulated
from tacit.report import gain

SMALL = {
    "data": {"clients": 4, "partition": "dirichlet", "alpha": 1.0},
    "train": {"rounds": 5, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": [1.0, 3.0, 3.0, 10.0]},
}


@pytest.mark.parametrize("between", [0.0, 0.02, 0.5])
def test_the_closed_form_is_what_a_simulation_with_rows_and_noise_measures(between):
    sites = Sites(np.array([8, 20, 40, 15]), np.array([0.3, 0.0, 0.05, 0.5]), between)
    rng, coordinates = np.random.default_rng(5), 20_000
    for index in (0, 2):
        found, known = simulated(sites, index, coordinates=coordinates, rng=rng), expected(sites, index)
        for name in ("alone", "common", "own"):  # a mean of squares has the relative error sqrt(2/coordinates), 1 %
            assert getattr(found, name) == pytest.approx(getattr(known, name), rel=6 * (2 / coordinates) ** 0.5)


def test_the_closed_form_is_not_that_of_other_noise_or_other_sites():
    sites, rng = Sites(np.array([8, 20, 40]), np.full(3, 0.2), 0.05), np.random.default_rng(5)
    found = simulated(sites, 0, coordinates=20_000, rng=rng)
    for other in (Sites(sites.rows, sites.noise * 1.5, 0.05), Sites(sites.rows, sites.noise, 0.1)):
        assert abs(expected(other, 0).common / found.common - 1) > 0.05


def test_an_own_model_never_expects_to_lose_and_the_common_one_may():
    rows = np.array([30, 30, 300])
    for noise, between, index in itertools.product((0.0, 0.1, 10.0), (0.0, 0.1, 10.0), range(3)):
        found = expected(Sites(rows, np.full(3, noise), between), index)
        assert found.own <= min(found.alone, found.common) * (1 + 1e-12)
    assert expected(Sites(rows, np.zeros(3), 10.0), 2).gains[0] < 0


def test_whoever_is_alone_or_hears_nothing_gains_nothing():
    assert expected(Sites(np.array([30]), np.zeros(1), 0.1), 0).gains[1] == 0
    silent = Sites(np.array([30, 30]), np.array([0.0, np.inf]), 0.1)
    assert expected(silent, 0).gains[1] == 0


def test_more_epsilon_and_less_difference_gain_more_and_it_pays_from_somewhere_on():
    found = gain.of_experiment(tacit.Experiment(**SMALL))
    for curve in found.curves.values():
        own = [point["own"] for point in curve]
        assert all(a <= b + 1e-3 for a, b in itertools.pairwise(own))
        assert all(0 <= value < 1 for value in own)
    near, far = found.curves[0.03][-1]["own"], found.curves[0.3][-1]["own"]
    assert near > far
    for curve, known in zip(found.curves.values(), found.pays.values(), strict=True):
        since = known["own"]
        before = [point for point in curve if since is None or point["epsilon"] < since * (1 - 1e-9)]
        assert all(point["own"] <= gain.PAYS for point in before)
    assert [site["epsilon"] for site in found.sites] == [1.0, 3.0, 3.0, 10.0]


def test_the_noise_is_that_of_the_experiments_own_plan():
    experiment = tacit.Experiment(**SMALL)
    parts = tacit.build.parts.build(experiment)
    plan, sizes = parts.plan, parts.population.sizes
    found = gain.noises(experiment, parts.population, sizes, parameters=650)
    by_hand = [650 * (z / (0.5 * n)) ** 2 / (2 * 5) for z, n in zip(plan.multipliers, sizes, strict=True)]
    assert found == pytest.approx(by_hand)


def test_the_command_prints_assumptions_and_draws_and_refuses_in_a_sentence(tmp_path):
    words = [
        "plan",
        "digits",
        "--set",
        "data.clients=3",
        "--set",
        "privacy.epsilon=3",
        "--set",
        "train.rounds=3",
        "--gain",
    ]
    shown = CliRunner().invoke(app, [*words, "--tau", "0.1", "--picture", str(tmp_path / "gain.svg")])
    assert shown.exit_code == 0, shown.output
    for said in ("no gain is promised", "tau 0.1: an own model gains 5%", "client-0"):
        assert said in shown.output
    assert (tmp_path / "gain.svg").read_text().startswith("<?xml")
    told = CliRunner().invoke(app, [*words, "--json"])
    assert {"assumes", "sites", "site", "curves"} == set(json.loads(told.stdout))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tau": -1.0}, "tau"),
        ({"rows": 0}, "rows"),
        ({"site": "clientt-0"}, "client-0"),
    ],
)
def test_numbers_and_sites_that_there_are_not_are_refused(options, sentence):
    with pytest.raises(BadInput, match=sentence):
        gain.of_experiment(tacit.Experiment(**SMALL), **options)


def test_where_no_site_noises_its_own_records_nothing_is_worked_out():
    central = {**SMALL, "train": {"rounds": 2}, "privacy": {"kind": "central", "epsilon": 3.0}}
    with pytest.raises(BadInput, match="noises its own records"):
        gain.of_experiment(tacit.Experiment(**central))
    refused = CliRunner().invoke(app, ["plan", "digits", "--tau", "0.1"])
    assert "belongs to --gain" in str(refused.exception)
    assert "needs an experiment" in str(CliRunner().invoke(app, ["plan", "--gain"]).exception)
