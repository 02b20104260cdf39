"""Statistics of a federation: asked once, paid before noise is drawn, near the truth."""

import json
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.engine.queries import read_stats
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.lab.stats import stats
from tacit.privacy.accounting import price
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.privacy.queries.ranges import BINS, CategoricalColumn, Described, NumericColumn, numbers
from tacit.report.plan import of_experiment

EPSILONS = {"north": 4.0, "south": 8.0}
TOML = """
[data]
name = "csv"
path = "{path}"
label = "ill"
classes = ["no", "yes"]
numeric = {{age = [0, 100], chol = {{private = [0, 1000]}}}}
categorical = {{sex = ["f", "m"]}}
test_share = 0
[train]
rounds = 2
sampling_rate = 0.2
[privacy]
kind = "local"
epsilon = {{north = 4.0, south = 8.0}}
[run]
workers = 1
"""


@pytest.fixture
def truth():
    rng = np.random.default_rng(0)
    return {
        name: {"age": rng.normal(60, 10, 800).clip(20, 95), "chol": rng.normal(240, 40, 800).clip(100, 500)}
        for name in EPSILONS
    }


@pytest.fixture
def file(tmp_path, truth):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, columns in truth.items():
        rows = zip(columns["age"], columns["chol"], strict=True)
        lines = [f"{a:.2f},{c:.1f},{'mf'[i % 4 == 0]},{'yes' if a > 60 else 'no'}" for i, (a, c) in enumerate(rows)]
        (folder / f"{name}.csv").write_text("age,chol,sex,ill\n" + "\n".join(lines) + "\n")
    path = tmp_path / "stats.toml"
    path.write_text(TOML.format(path=folder))
    return path


@pytest.fixture
def asked(file):
    return lambda *settings: tacit.Experiment.load(file, settings)


def charges(path):
    with sqlite3.connect(path) as book:
        return book.execute("SELECT client, round FROM charges ORDER BY client").fetchall()


def column(told, name):
    return next(one for one in told["columns"] if one["column"] == name)


def test_means_quantiles_and_counts_are_near_the_truth(asked, truth, tmp_path):
    told = stats(asked(), share=0.5, out=tmp_path / "out")
    for name in ("age", "chol"):
        values = np.concatenate([truth[client][name] for client in EPSILONS])
        found = column(told, name)
        low, high = found["mean"]["interval"]
        assert low <= found["mean"]["value"] <= high
        width = found["edges"][1] - found["edges"][0]
        assert found["mean"]["value"] == pytest.approx(values.mean(), abs=width)
        assert found["50 %"]["value"] == pytest.approx(np.median(values), abs=2 * width)
    sex = column(told, "sex")
    assert sex["counts"] == pytest.approx([400, 1200], abs=3 * sex["margin"])
    assert column(told, "ill")["values"] == ["no", "yes"]
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["columns"] == told["columns"]
    assert "histogram, released once" in told["sentence"]


def test_every_client_pays_its_share_and_no_more_is_sealed(asked, tmp_path):
    stats(asked(), share=0.25, out=tmp_path / "out")
    assert charges(tmp_path / "out" / "ledger.db") == [("north", 0), ("south", 0)]
    with sqlite3.connect(tmp_path / "out" / "ledger.db") as book:
        sealed = book.execute("SELECT client, most, epsilon, text FROM seals JOIN events ON id = event").fetchall()
    for client, most, epsilon, text in sealed:
        assert most == 1
        assert 0.99 * 0.25 * EPSILONS[client] < epsilon <= 0.25 * EPSILONS[client]
        assert epsilon == price.epsilon(price.compose([(price.from_text(text), 1)]), delta=1e-5)


def test_the_charge_is_on_disk_when_noise_is_drawn_and_a_second_noise_is_never_drawn(asked, tmp_path, monkeypatch):
    seen, real, out = [], NoisyCounts.noise, tmp_path / "out"

    def noted(self, *rest):
        seen.append(charges(out / "ledger.db"))
        assert (self.l2_squared, self.cells) == (4, 2 * BINS + 4)
        return real(self, *rest)

    monkeypatch.setattr(NoisyCounts, "noise", noted)
    first = stats(asked("run.randomness=os"), out=out)
    assert seen == [[("north", 0), ("south", 0)]] * 2
    again = stats(asked("run.randomness=os"), out=out, resume=True)
    assert again == first
    assert len(seen) == 2
    with pytest.raises(BadInput, match="answers to other questions"):
        stats(asked("run.randomness=os"), out=out, resume=True, share=0.2)
    (out / "queries.json").unlink()
    with pytest.raises(BudgetExhausted, match="No client's remaining budget pays"):
        stats(asked("run.randomness=os"), out=out, resume=True)
    assert len(seen) == 2


def test_answers_without_a_charge_are_refused(asked, tmp_path):
    out = tmp_path / "out"
    stats(asked(), out=out)
    for name in ("ledger.db", "ledger.mark"):
        (out / name).unlink(missing_ok=True)
    with pytest.raises(LedgerError, match="has no charge for"):
        stats(asked(), out=out, resume=True)


def test_statistics_and_training_count_in_one_ledger(asked, tmp_path):
    shared = (f"privacy.ledger={tmp_path / 'all.db'}", "privacy.delta_share=0.4")
    stats(asked(*shared), share=0.5, out=tmp_path / "stats")
    history = tacit.run(asked(*shared), out=tmp_path / "run", page=False)
    with sqlite3.connect(tmp_path / "all.db") as book:
        sealed = dict(book.execute("SELECT client, SUM(epsilon) FROM seals GROUP BY client").fetchall())
    assert all(0.9 * limit < sealed[name] <= limit for name, limit in EPSILONS.items())
    assert "1 other run" in history.sentence


def test_two_questions_never_share_noise(asked, tmp_path):
    both = []
    for number, share in enumerate((0.1, 0.11)):
        stats(asked(), share=share, columns=["age"], out=tmp_path / str(number))
        both.append(json.loads((tmp_path / str(number) / "queries.json").read_text())["stats"]["counts"]["north"])
    assert np.mean(np.array(both[0]) != np.array(both[1])) > 0.8


def test_without_privacy_counts_are_exact_and_held_out_rows_are_counted_too(asked, tmp_path):
    plain = ("privacy.kind=none", "privacy.epsilon=", "data.held_out=0.3")
    told = stats(asked(*plain), columns=["sex"], out=tmp_path / "out")
    assert column(told, "sex")["counts"] == [400, 1200]
    assert told["guarantee"] is None
    assert not (tmp_path / "out" / "ledger.db").exists()


@given(st.integers(0, 10**6), st.integers(0, 10))
def test_one_record_changes_one_cell_of_each_column_by_one(seed, rows):
    rng = np.random.default_rng(seed)
    query = Described(
        (
            numbers("a", 0, limits=(0.0, 5.0), wide=None),
            CategoricalColumn("w", ("u", "v"), 1),
            CategoricalColumn("y", ("n", "j"), None),
        )
    )
    x = np.column_stack([rng.normal(0.5, 2, rows + 1), np.eye(2)[rng.integers(0, 2, rows + 1)]])
    y = rng.integers(0, 2, rows + 1)
    change = query.count(x, y).values - query.count(x[:-1], y[:-1]).values
    assert (change**2).sum() == query.l2_squared == 3
    assert query.count(x, y).values.sum() == 3 * (rows + 1)
    assert len(change) == query.cells == BINS + 4


def test_of_noise_alone_nothing_is_told():
    one = NumericColumn("a", 0, tuple(np.linspace(0, 1, BINS + 1)), (0.0, 1.0))
    noise = np.rint(np.random.default_rng(0).normal(0, 50, BINS))
    assert set(one.metrics(noise, std=50.0).values()) == {None}


DECLARED = ("data.numeric={age=[0,100],chol=[0,600]}",)


@pytest.mark.parametrize(
    ("settings", "columns", "message"),
    [
        (DECLARED, ["agee"], "no column 'agee' to count. Did you mean 'age'"),
        (('data.numeric={age=[0,100],chol="private"}',), [], "Column 'chol' has no range"),
        ((*DECLARED, "privacy.kind=central", "privacy.epsilon=3.0"), ["age"], "Statistics are priced per record"),
        ((*DECLARED, "privacy.unit=client"), ["age"], "Statistics are priced per record"),
    ],
)
def test_what_cannot_be_counted_or_priced_is_refused_in_one_sentence(asked, tmp_path, settings, columns, message):
    experiment = asked(*settings)
    with pytest.raises(BadInput, match=message):
        stats(experiment, columns=columns, out=tmp_path / "out")


def test_no_limit_has_no_share_and_an_empty_budget_pays_nothing(asked, tmp_path):
    plain = DECLARED
    with pytest.raises(BadInput, match="Client north sets no limit"):
        stats(
            asked(*plain, "privacy.epsilon={north=inf,south=1.0}", "privacy.noise_multiplier=1.0"), out=tmp_path / "a"
        )
    with pytest.raises(BadInput, match="share"):
        stats(asked(*plain), share=0.0, out=tmp_path / "b")


def test_the_command_prints_tables_and_says_what_it_cost(file, tmp_path):
    done = CliRunner().invoke(app, ["stats", str(file), "--out", str(tmp_path / "out"), "--column", "age"])
    assert done.exit_code == 0, done.output
    assert "95 %" in done.output
    assert "2 of 2 clients answered" in done.output
    assert "a ledger of its own" in " ".join(done.output.split())


def test_a_folder_shows_the_columns_that_are_named_and_refuses_one_that_was_not_asked(file, tmp_path):
    out = str(tmp_path / "out")
    asked_for = ["--column", "age", "--column", "sex"]
    assert CliRunner().invoke(app, ["stats", str(file), "--out", out, *asked_for]).exit_code == 0
    for names, shown in (([], ["age", "sex"]), (["--column", "sex"], ["sex"])):
        told = json.loads(CliRunner().invoke(app, ["stats", out, *names, "--json"]).output)
        assert [column["column"] for column in told["columns"]] == shown
    refused = CliRunner().invoke(app, ["stats", out, "--column", "chol"]).exception
    assert isinstance(refused, BadInput)
    assert str(refused) == "chol was not asked; this run has: age, sex."


def test_a_run_that_names_columns_describes_them_before_round_0_and_pays_with_training(asked, truth, tmp_path):
    ranged = ("data.numeric={age = [0, 100], chol = [100, 500]}",)
    experiment = asked('privacy.stats=["age", "ill"]', "privacy.query_shares={stats = 0.5}", *ranged)
    history = tacit.run(experiment, out=tmp_path / "run", page=False)
    told = read_stats(tmp_path / "run")
    everybody = np.concatenate([columns["age"] for columns in truth.values()])
    assert column(told, "age")["mean"]["value"] == pytest.approx(everybody.mean(), abs=5)
    assert charges(tmp_path / "run" / "ledger.db") == [("north", -1), ("north", 0), ("north", 1)] + [
        ("south", round) for round in (-1, 0, 1)
    ]
    assert history.guarantee.epsilon_max <= 8.0
    assert "its answer, once, to 1 query (stats), which is in this epsilon" in history.sentence
    (north, south) = of_experiment(experiment)
    assert north["stats_epsilon"][1] <= 2.0 < south["stats_epsilon"][1] <= 4.0
    again = tacit.run(experiment, out=tmp_path / "run", resume=True, page=False)
    assert read_stats(tmp_path / "run") == told
    assert again.guarantee == history.guarantee


def test_statistics_of_a_run_are_asked_for_by_columns_that_are_there_and_by_a_share(asked, tmp_path):
    with pytest.raises(BadInput, match=r"There is no column 'agee' to count. Did you mean 'age'"):
        of_experiment(asked('privacy.stats=["agee"]'))
    with pytest.raises(BadInput, match=r"privacy.query_shares.stats is for statistics"):
        asked("privacy.query_shares={stats = 0.5}")
    with pytest.raises(BadInput, match="has no statistics"):
        read_stats(tmp_path)
