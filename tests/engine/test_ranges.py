"""Private ranges in real runs: asked once, paid before they are released, within every client's epsilon."""

import json
import sqlite3

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trained import changed

import tacit
from tacit.engine import queries
from tacit.engine.assemble import build
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.privacy.queries.ranges import Ranges
from tacit.report.plan import of_experiment
from tacit.types import Budget, Client

EPSILONS = {"north": 1.0, "coast": 3.0, "valley": 8.0}


@pytest.fixture
def hospitals(tmp_path):
    """Three hospitals with a column of which nobody knows the range; hospitals(privacy={...}) changes settings."""
    folder = tmp_path / "rows"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, name in enumerate(EPSILONS):
        rows = 200 + 50 * number
        chol, age = rng.normal(240, 45, rows).clip(90, 600), rng.uniform(20, 90, rows)
        ill = np.where(chol / 240 + age / 55 + rng.normal(0, 0.3, rows) > 2, "yes", "no")
        lines = [f"{a:.1f},{c:.0f},{y}" for a, c, y in zip(age, chol, ill, strict=True)]
        (folder / f"{name}.csv").write_text("age,chol,ill\n" + "\n".join(lines) + "\n")

    def made(**changes):
        values = {
            "data": {
                "name": "csv",
                "path": str(folder),
                "label": "ill",
                "classes": ["no", "yes"],
                "numeric": {"age": [0, 120], "chol": "private"},
            },
            "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.2},
            "privacy": {"kind": "local", "epsilon": EPSILONS},
            "run": {"workers": 1},
        }
        return changed(values, changes)

    return made


def charges(out):
    with sqlite3.connect(out / "ledger.db") as book:
        return book.execute("SELECT client, round, attempt FROM charges ORDER BY time, round, client").fetchall()


def released(out):
    return json.loads((out / "queries.json").read_text())["ranges"]


def column(out, name):
    columns = json.loads((out / "encoder.json").read_text())["columns"]
    return next(column["limits"] for column in columns if column["name"] == name)


def test_a_private_range_is_found_and_read_by_training_and_prediction_alike(hospitals, tmp_path):
    history = tacit.run(hospitals(), out=tmp_path / "run", page=False)
    assert column(tmp_path / "run", "chol") == [128.0, 512.0]
    assert column(tmp_path / "run", "age") == [0.0, 120.0]
    x = build(hospitals(), ranges={"chol": (128.0, 512.0)}).population.x
    assert 0 <= x.min() <= x.max() <= 1
    assert history.summary["queries"]["ranges"]["share"] == 0.05
    assert any("chol 128 to 512" in note for note in history.summary["notes"])
    assert not any("declared range" in note and "chol" in note for note in history.summary["notes"])
    assert "1 query (ranges)" in history.sentence
    found = tacit.load(tmp_path / "run").predict({"age": [50.0], "chol": [240.0]})
    assert found.labels[0] in ("no", "yes")


def test_every_client_pays_for_the_query_before_round_0_and_in_all_no_more_than_its_epsilon(hospitals, tmp_path):
    history = tacit.run(hospitals(), out=tmp_path / "run", page=False)
    paid = charges(tmp_path / "run")
    assert [round for _, round, _ in paid] == [-1] * 3 + [0] * 3 + [1] * 3
    for name, limit in EPSILONS.items():
        composition = history.ledger.composition(name, "record")
        assert len(composition) == 2
        spent = price.epsilon(composition, delta=1e-5)
        assert 0.99 * limit < spent <= limit  # the rest of epsilon is training's, to the last percent
        (query,) = (event for event, _ in composition if "Rounded" in type(event).__name__)
        assert 0.99 * 0.05 * limit < price.epsilon(((query, 1),), delta=1e-5) <= 0.05 * limit


def test_the_charge_is_on_disk_when_the_noise_is_drawn_and_is_that_of_the_noise(hospitals, tmp_path, monkeypatch):
    drawn, seen, real = [], [], NoisyCounts.noise

    def noted(self, *rest):
        drawn.append(self)
        seen.append([round for _, round, _ in charges(tmp_path / "run")])
        return real(self, *rest)

    monkeypatch.setattr(NoisyCounts, "noise", noted)
    history = tacit.run(hospitals(), out=tmp_path / "run", page=False)
    assert seen == [[-1] * 3] * 3
    priced = [
        event.noise_multiplier
        for name in history.ledger.charged()
        for event, _ in history.ledger.composition(name, "record")
        if "Rounded" in type(event).__name__
    ]
    assert sorted(noise.noise_multiplier for noise in drawn) == sorted(priced)
    assert {(noise.l2_squared, noise.cells) for noise in drawn} == {(1, 123)}


@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_a_resumed_run_draws_no_second_noise_and_charges_nothing_twice(hospitals, tmp_path, monkeypatch, randomness):
    experiment, out = hospitals(run={"workers": 1, "randomness": randomness}), tmp_path / "run"

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tacit.simulation.loop", killed)
        with pytest.raises(KeyboardInterrupt):
            tacit.run(experiment, out=out, page=False)
    first = (out / "queries.json").read_bytes()
    monkeypatch.setattr(NoisyCounts, "noise", killed)
    tacit.run(experiment, out=out, resume=True, page=False)
    assert (out / "queries.json").read_bytes() == first
    assert sum(round == -1 for _, round, _ in charges(out)) == 3


def test_lost_answers_are_repeated_bit_for_bit_or_not_at_all(hospitals, tmp_path):
    for randomness, repeats in (("seeded", True), ("os", False)):
        out, experiment = tmp_path / randomness, hospitals(run={"workers": 1, "randomness": randomness})
        tacit.run(experiment, out=out, page=False)
        first = (out / "queries.json").read_bytes()
        (out / "queries.json").unlink()
        if repeats:
            tacit.run(experiment, out=out, resume=True, page=False)
            assert (out / "queries.json").read_bytes() == first
        else:
            with pytest.raises(LedgerError, match=r"query 'ranges' of this run, .* answered once"):
                tacit.run(experiment, out=out, resume=True, page=False)
        assert len(charges(out)) == 9


def test_answers_that_the_ledger_was_never_charged_for_are_refused(hospitals, tmp_path):
    out = tmp_path / "run"
    tacit.run(hospitals(), out=out, page=False)
    records = json.loads((out / "queries.json").read_text())
    records["ranges"]["attempt"] = "another"
    (out / "queries.json").write_text(json.dumps(records))
    with pytest.raises(LedgerError, match="knows no charge for them"):
        tacit.run(hospitals(), out=out, resume=True, page=False)
    (out / "queries.json").write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        tacit.run(hospitals(), out=out, resume=True, page=False)


def test_two_runs_that_differ_in_anything_share_no_noise(hospitals, tmp_path):
    noises = []
    for number, train in enumerate(({}, {"learning_rate": 0.4})):
        experiment = hospitals(train={"rounds": 1, "local_steps": 2, "sampling_rate": 0.2} | train)
        tacit.run(experiment, out=tmp_path / str(number), page=False)
        parts = build(experiment)
        query = queries.query_of(experiment, parts.dataset, parts.plan, parts.population)
        truth = {parts.population[k].id: query.count(parts.population[k]).values for k in range(3)}
        noises.append(
            {
                name: np.array(counts) - truth[name]
                for name, counts in released(tmp_path / str(number))["counts"].items()
            }
        )
    first, second = noises
    assert all((first[name] != second[name]).mean() > 0.5 for name in first)
    assert (first["north"] != first["coast"]).mean() > 0.5


def client(x):
    x = torch.tensor(x, dtype=torch.float32)
    return Client(0, "a", Budget(1.0, 1e-5), x, torch.zeros(len(x), dtype=torch.int64))


VALUES = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=20), st.tuples(VALUES, VALUES))
def test_one_record_changes_one_count_of_each_column_by_one_whatever_its_values(rows, one):
    query = Ranges(("a", "b"), (0, 1), (None, (0.0, 100.0)))
    before, after = (query.count(client(some)) for some in (rows, [*rows, one]))
    change = after.values - before.values
    assert sorted(change.tolist())[-3:] == [0, 1, 1]
    assert (change**2).sum() == query.l2_squared == after.l2_squared
    assert len(before.values) == query.cells
    assert before.values.sum() == 2 * len(rows)


@pytest.mark.parametrize(
    ("values", "wide", "expected"),
    [
        (np.linspace(100, 500, 1000), None, (64.0, 512.0)),
        (np.linspace(-3, 3, 1001), None, (-4.0, 4.0)),
        (np.zeros(500), None, (0.0, 1.0)),
        (np.linspace(1950, 2010, 1000), (1900.0, 2100.0), (1950.0, 2012.5)),
        (np.concatenate([np.full(999, 3.0), [1e30]]), None, (2.0, 4.0)),  # one outlier in a thousand is clamped
        (np.full(10, 1e30), None, (2.0**40, 2.0**40 + 1)),
    ],
)
def test_ranges_of_exact_counts_are_those_of_the_bins_that_hold_rows(values, wide, expected):
    query = Ranges(("a",), (0,), (wide,))
    counts = query.count(client(values[:, None].tolist())).values
    assert query.found([counts], np.array([len(values)]), np.zeros(1)) == {"a": expected}


def test_a_noisier_client_cannot_hide_what_the_others_know():
    query = Ranges(("a",), (0,), (None,))
    counts = query.count(client(np.linspace(100, 500, 1000)[:, None].tolist())).values
    rng = np.random.default_rng(0)
    noised = [counts + rng.normal(0, std, len(counts)) for std in (5.0, 1e5)]
    sizes, stds = np.array([1000, 1000]), np.array([5.0, 1e5])
    assert query.found(noised, sizes, stds) == {"a": (64.0, 512.0)}
    assert query.threshold(sizes, stds) < 0.03


def test_without_privacy_ranges_are_exact_and_nothing_is_charged(hospitals, tmp_path):
    asked = hospitals(privacy={"kind": "none", "epsilon": None})
    tacit.run(asked, out=tmp_path / "run", page=False)
    answers, population = released(tmp_path / "run"), build(asked).population
    trained = dict(zip(population.names, population.sizes.tolist(), strict=True))
    assert {
        name: sum(counts) for name, counts in answers["counts"].items()
    } == trained  # the test rows are not among them
    assert sum(trained.values()) < 200 + 250 + 300
    assert set(answers["noise_std"].values()) == {0.0}
    assert queries.kept(tmp_path) == {}
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_the_plan_says_what_a_query_costs_and_refuses_one_that_is_in_vain_or_too_dear(hospitals, tmp_path):
    rows = of_experiment(hospitals())
    assert [row["ranges_epsilon"] for row in rows] == [
        [pytest.approx(0.05 * e, rel=0.01)] * 2 for e in EPSILONS.values()
    ]
    with pytest.raises(
        BadInput, match=r"would hide every value that fewer than \d+ % .* raise privacy.query_shares.ranges"
    ):
        of_experiment(hospitals(privacy={"epsilon": 0.1}))
    dear = hospitals(privacy={"noise_multiplier": 0.2})
    with pytest.raises(BudgetExhausted, match=r"ranges of data.numeric \(0.05 of epsilon\) and one round"):
        of_experiment(dear)
    with pytest.raises(
        BudgetExhausted, match=r"one round of training with this noise: privacy.epsilon = [\d.]+ would be"
    ):
        tacit.run(dear, out=tmp_path / "dear", page=False)
    assert not (tmp_path / "dear").exists()


def test_a_ledger_that_several_runs_share_counts_queries_of_all_of_them(hospitals, tmp_path):
    shared = {"ledger": str(tmp_path / "all.db"), "delta_share": 0.5, "noise_multiplier": 8.0}
    for number in range(2):
        tacit.run(hospitals(privacy=shared), out=tmp_path / str(number), page=False)
    with sqlite3.connect(tmp_path / "all.db") as book:
        sealed = dict(book.execute("SELECT client, SUM(epsilon) FROM seals GROUP BY client").fetchall())
        assert book.execute("SELECT COUNT(*) FROM charges WHERE round = -1").fetchone() == (6,)
    assert all(sealed[name] <= limit for name, limit in EPSILONS.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"kind": "central", "epsilon": 3.0}}, "priced per record"),
        ({"privacy": {"kind": "distributed", "epsilon": 3.0}}, "priced per record"),
        ({"privacy": {"unit": "client"}}, "priced per record"),
        ({"privacy": {"query_shares": {"ranges": 0.0}}}, "query_shares.ranges"),
        ({"privacy": {"query_shares": {"ranges": 1.5}}}, "query_shares.ranges"),
        (
            {"privacy": {"query_shares": {"ranges": 0.1}}, "data": {"numeric": {"age": [0, 120], "chol": [0, 600]}}},
            "not asked for",
        ),
    ],
)
def test_what_no_ledger_would_pay_for_is_refused_when_it_is_said(hospitals, changes, message):
    with pytest.raises(BadInput, match=message):
        hospitals(**changes)


def test_no_limit_has_no_share_and_a_range_is_looked_for_between_two_ends(hospitals):
    with pytest.raises(BadInput, match="Client north sets no limit"):
        build(hospitals(privacy={"epsilon": EPSILONS | {"north": float("inf")}, "noise_multiplier": 1.0}))
    with pytest.raises(BadInput, match="low < high"):
        build(hospitals(data={"numeric": {"age": [0, 120], "chol": {"private": [9, 9]}}}))


def test_rounded_noise_that_is_small_makes_no_empty_bin_count():
    """Half a row is as far as 1.7 standard deviations of .3: a quantile of the Gaussian alone would be passed every third time."""
    query, rng, sizes = Ranges(("chol",), (0,), (None,)), np.random.default_rng(0), np.full(3, 200)
    for std in (0.2, 0.3, 0.45, 0.8, 3.0):
        stds, true = np.full(3, std), np.zeros((3, query.cells))
        true[:, 90] = sizes
        first = query.found(list(true), sizes, stds)
        wrong = sum(
            query.found(list(true + np.rint(rng.normal(0, std, true.shape))), sizes, stds) != first for _ in range(400)
        )
        assert wrong <= 12, std  # 1 % of 400 is 4
