"""What joining may be worth, before anybody trains: a closed form, its slow twin, and the experiment's own noise in it."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.errors import BadInput
from tacit.report import gain
from tacit.report.gain import Errors, Sites, expected, tau_of

SMALL = {
    "data": {"clients": 4, "partition": "dirichlet", "alpha": 1.0},
    "train": {"rounds": 5, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": [1.0, 3.0, 3.0, 10.0]},
}


def simulated(sites: Sites, index: int, *, coordinates: int, rng: np.random.Generator) -> Errors:
    """The slow twin of `expected`: optima, rows and noise are drawn, and errors measured over so many coordinates."""
    common = rng.standard_normal(coordinates)
    optima = common + np.sqrt(sites.between) * rng.standard_normal((len(sites.rows), coordinates))
    means = np.stack(
        [(w + rng.standard_normal((int(n), coordinates))).mean(0) for w, n in zip(optima, sites.rows, strict=True)]
    )
    sent = means + np.sqrt(sites.noise)[:, None] * rng.standard_normal(means.shape)
    trust = 1 / (sites.between + 1 / sites.rows + sites.noise)
    apart = np.where(np.arange(len(trust)) == index, 0.0, trust)
    others, spread = apart @ sent / apart.sum(), sites.between + 1 / apart.sum()
    n = sites.rows[index]
    own = (n * means[index] + others / spread) / (n + 1 / spread)
    found = (means[index], trust @ sent / trust.sum(), own)
    return Errors(*(float(((model - optima[index]) ** 2).mean()) for model in found))


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
    parts = tacit.engine.assemble.build(experiment)
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
    shown = CliRunner().invoke(app, [*words, "--with", "tau=0.1", "--with", f"picture={tmp_path / 'gain.svg'}"])
    assert shown.exit_code == 0, shown.output
    for said in ("no gain is promised", "tau 0.1: a personalised model gains 5 %", "client-0"):
        assert said in shown.output
    assert (tmp_path / "gain.svg").read_text().startswith("<?xml")
    told = CliRunner().invoke(app, [*words, "--json"])
    known = {"assumes", "sites", "site", "asked", "asked_half_as_often", "curves"}
    assert known == set(json.loads(told.stdout))


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
    refused = CliRunner().invoke(app, ["plan", "digits", "--with", "tau=0.1"])
    assert "belongs to --gain" in str(refused.exception)
    assert "needs an experiment" in str(CliRunner().invoke(app, ["plan", "--gain"]).exception)


# before round 0: no row, and no file

BEFORE = {
    "data": {
        "name": "csv",
        "path": "nowhere",
        "test_path": "nowhere-test.csv",
        "label": "ill",
        "classes": ["no", "yes"],
        "numeric": {"age": [20, 100], "pressure": [80, 200]},
        "categorical": {"sex": ["f", "m"]},
    },
    "task": {"kind": "binary"},
    "train": {"rounds": 5, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0, "dale": 3.0}},
}


def test_with_rows_said_no_file_is_looked_for_and_names_and_epsilons_are_the_experiments():
    found = gain.of_experiment(tacit.Experiment(**BEFORE), rows=100)
    assert {one["site"]: one["epsilon"] for one in found.sites} == {"north": 1.0, "coast": 3.0, "dale": 3.0}
    assert all(one["rows"] == 100 for one in found.sites)
    assert found.parameters == 4 + 1  # two numbers, and two words of one column
    with pytest.raises(BadInput, match="nowhere"):
        gain.of_experiment(tacit.Experiment(**BEFORE))


def test_without_rows_it_says_what_is_missing_and_columns_may_be_said():
    def other(section, **changes):
        return tacit.Experiment(**{**BEFORE, section: BEFORE[section] | changes})

    unnamed = other("data", numeric="unscaled", categorical={})
    with pytest.raises(BadInput, match="columns=N"):
        gain.of_experiment(unnamed, rows=100)
    assert gain.of_experiment(unnamed, rows=100, columns=7).parameters == 8
    with pytest.raises(BadInput, match="how many sites there are"):
        gain.of_experiment(other("privacy", epsilon=2.0), rows=100)
    assert gain.of_experiment(
        tacit.Experiment(
            **{**BEFORE, "data": BEFORE["data"] | {"clients": 4}, "privacy": {"kind": "local", "epsilon": 2.0}}
        ),
        rows=100,
    ).everybody == 4  # fmt: skip
    with pytest.raises(BadInput, match="say rows=N too"):
        gain.of_experiment(tacit.Experiment(**BEFORE), columns=3)


def test_it_says_how_often_a_site_is_asked_and_what_half_as_often_would_give():
    experiment = tacit.Experiment(**{**SMALL, "train": SMALL["train"] | {"clients_per_round": 2}})
    found = gain.of_experiment(experiment, tau=0.1, rows=50, site="client-3")
    assert found.asked == {"rounds": 2.5, "of": 5.0}
    now = next(one["gains"][0] for one in found.sites if one["site"] == "client-3")
    assert found.half[0.1]["own"] < now["own"]  # its noise is averaged over half the rounds
    lines = gain.pays(found)
    assert lines[0] == "A site is expected to be asked in 2.5 of 5 rounds."
    assert "asked half as often" in lines[1]
    same = replace(found, half={0.1: found.half[0.1] | {"own": now["own"] - 1e-9}})
    assert "instead of" not in gain.pays(same)[1]  # what reads the same is no change
    other = replace(found, half={0.1: found.half[0.1] | {"own": now["own"] - 0.1}})
    assert "instead of" in gain.pays(other)[1]


def test_a_tau_is_printed_to_three_digits():
    found = gain.of_experiment(tacit.Experiment(**SMALL), tau=0.122735, rows=50)
    assert gain.pays(found)[1].startswith("tau 0.123: ")


def test_how_much_sites_differ_is_taken_from_a_finished_run_in_the_units_of_a_gain(tmp_path):
    experiment = tacit.Experiment(**{**SMALL, "data": SMALL["data"] | {"partition": "shards"}})
    history = tacit.run(experiment, out=tmp_path / "run")
    plan = tacit.engine.assemble.build(experiment).plan
    last = history.rounds[-1]["tau"]
    # a step's noise on the mean gradient, of a clip 1: the same number in both units, but for the learning rate and the steps
    in_clips = last / (experiment.train.learning_rate * plan.steps[0])
    assert tau_of(tmp_path / "run") == pytest.approx(in_clips * history.summary["parameters"] ** 0.5)
    words = ["plan", "digits", "--set", "data.clients=3", "--set", "privacy.epsilon=3", "--set", "train.rounds=3"]
    shown = CliRunner().invoke(app, [*words, "--gain", "--with", f"tau={tmp_path / 'run'}"])
    assert shown.exit_code == 0, shown.output
    assert f"tau {tau_of(tmp_path / 'run'):.3g}: a personalised model gains" in shown.output


def test_a_run_that_does_not_say_how_much_clients_differ_is_refused(tmp_path):
    tacit.run(
        tacit.Experiment(**{**SMALL, "privacy": {"kind": "local", "epsilon": 3.0}, "aggregate": {"rule": "mean"}}),
        out=tmp_path / "run",
    )
    with pytest.raises(BadInput, match=r"say --with tau=0\.1 instead"):
        tau_of(tmp_path / "run")
