"""Evaluation on rows that clients hold out: parted record by record, asked once, paid for by those rows alone."""

import json
import re
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch
from trained import changed

import tacit
from tacit.data.population import coins
from tacit.engine import queries
from tacit.engine.assemble import build
from tacit.engine.run_files import read
from tacit.errors import BadData, BadInput, LedgerError
from tacit.lab.grid import compare
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import sentence
from tacit.privacy.queries.mechanism import NoisyCounts
from tacit.report.closing import facts
from tacit.report.collect import run_page
from tacit.report.plan import of_experiment
from tacit.training.flat import flatten

HELD = {"clients": 6, "examples_per_client": 40, "held_out": 0.25}


def killed(*_, **__):
    raise KeyboardInterrupt


def charges(path):
    with sqlite3.connect(path) as book:
        return book.execute("SELECT client, round, attempt FROM charges ORDER BY time, round, client").fetchall()


def run(small, out, **changes):
    return tacit.run(
        small(**{"data": HELD, "train": {"rounds": 2}, "run": {"workers": 1}} | changes), out=out, page=False
    )


def rows_of(population):
    return sorted(map(bytes, np.column_stack([population.x.flatten(1).numpy(), population.y.numpy()])))


def test_held_out_rows_are_a_clients_own_and_never_trained_on(small):
    whole, parts = build(small(data=HELD | {"held_out": None})), build(small(data=HELD))
    kept, held = parts.population, parts.population.held
    assert sorted(rows_of(kept) + rows_of(held)) == rows_of(whole.population)
    assert (kept.sizes + held.sizes == whole.population.sizes).all()
    assert 0 < held.sizes.sum() < 0.5 * whole.population.sizes.sum()
    assert len(parts.dataset.y) == len(kept.y)
    for index in range(6):
        assert set(rows_of(kept)).isdisjoint(rows_of(held))
        assert held[index].id == kept[index].id


def test_a_record_that_comes_or_goes_moves_no_other_one_between_the_sides():
    x, y = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2
    with_all = coins(x, y, share=0.25, seed=0, purpose="evaluation")
    without = coins(torch.cat([x[:77], x[78:]]), torch.cat([y[:77], y[78:]]), share=0.25, seed=0, purpose="evaluation")
    assert (np.delete(with_all, 77) == without).all()
    assert (with_all != coins(x, y, share=0.25, seed=0)).any()  # another coin than that of public test rows


def test_clients_answer_once_at_the_end_and_pay_for_it_from_the_held_out_side_alone(small, tmp_path):
    history = run(small, tmp_path)
    paid = charges(tmp_path / "ledger.db")
    assert [round for _, round, _ in paid] == [0] * 6 + [1] * 6 + [-1] * 6
    for index in range(6):
        name, limit = f"client-{index}", index + 1.0
        composition = history.ledger.composition(name, "record")
        sides = {event.side: [] for event, _ in composition}
        for event, count in composition:
            sides[event.side].append((event.event, count))
        apart = {side: price.epsilon(price.compose(one), delta=1e-5) for side, one in sides.items()}
        assert set(apart) == {"trained on", "held out"}
        assert all(0.99 * limit < spent <= limit for spent in apart.values())
        assert history.ledger.spent(build(small(data=HELD)).population[index]) == max(apart.values())
    plain = run(small, tmp_path / "plain", data=HELD | {"held_out": None})
    assert history.summary["noise_multiplier"] == plain.summary["noise_multiplier"]  # training pays nothing for it
    assert "evaluation is about held-out records alone" in history.sentence


def test_the_summary_says_what_clients_found_with_its_interval(small, tmp_path):
    history = run(small, tmp_path, privacy={"epsilon": 30.0}, train={"rounds": 4, "local_steps": 5})
    told = history.summary["at_clients"]
    low, high = told["metrics"]["accuracy"]["interval"]
    assert low <= told["metrics"]["accuracy"]["value"] <= high
    assert (told["metric"], told["answered"], told["clients"]) == ("accuracy", 6, 6)
    held = build(small(data=HELD)).population.held
    assert told["rows"] == pytest.approx(len(held.y), abs=15)
    assert "95 % over noise and rows" in facts(history.summary)["accuracy at the clients, on held-out rows"]
    assert history.summary["queries"]["evaluation"]["share"] == 1.0


def test_the_reports_curve_counts_the_evaluation_at_the_end_and_no_round_more(small, tmp_path):
    run(small, tmp_path, privacy={"epsilon": 3.0, "query_shares": {"evaluation": 1.0}}, train={"rounds": 4})
    told = run_page(read(tmp_path))
    spent = told["curves"][0]["epsilon"]
    assert spent == sorted(spent)
    assert spent[0] < 2.5 < spent[-1] <= 3.0
    assert told["clients"]["taken"] == [4] * 6


def test_without_privacy_the_answer_is_exact(small, tmp_path):
    history = run(small, tmp_path, privacy={"kind": "none", "epsilon": None})
    held = build(small(data=HELD)).population.held
    model = history.model.eval()
    with torch.inference_mode():
        right = float((model(held.x).argmax(1) == held.y).float().mean())
    assert history.summary["at_clients"]["metrics"]["accuracy"]["value"] == pytest.approx(right)
    assert history.summary["at_clients"]["rows"] == len(held.y)


def test_the_charge_is_on_disk_when_the_noise_is_drawn_and_is_that_of_the_noise(small, tmp_path, monkeypatch):
    seen, real = [], NoisyCounts.noise

    def noted(self, *rest):
        seen.append((self, sum(round == -1 for _, round, _ in charges(tmp_path / "ledger.db"))))
        return real(self, *rest)

    monkeypatch.setattr(NoisyCounts, "noise", noted)
    history = run(small, tmp_path)
    assert [count for _, count in seen] == [6] * 6
    for index, (noise, _) in enumerate(seen):
        events = [event for event, _ in history.ledger.composition(f"client-{index}", "record")]
        assert price.compose([(noise.event(), 1)])[0][0] in events
        assert (noise.l2_squared, noise.cells) == (1, 2)


@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_a_run_killed_before_or_after_its_evaluation_answers_once(small, tmp_path, monkeypatch, randomness):
    settings = {"run": {"workers": 1, "randomness": randomness}}
    with monkeypatch.context() as patched:
        patched.setattr("tacit.simulation.evaluate_at_clients", killed)
        with pytest.raises(KeyboardInterrupt):
            run(small, tmp_path, **settings)
    assert not (tmp_path / "queries.json").exists()
    experiment = small(data=HELD, train={"rounds": 2}, **settings)
    with monkeypatch.context() as patched:
        patched.setattr("tacit.simulation.finish", killed)
        with pytest.raises(KeyboardInterrupt):
            tacit.run(experiment, out=tmp_path, resume=True, page=False)
    first = (tmp_path / "queries.json").read_bytes()
    monkeypatch.setattr(NoisyCounts, "noise", killed)  # drawing again would be seen
    history = tacit.run(experiment, out=tmp_path, resume=True, page=False)
    assert (tmp_path / "queries.json").read_bytes() == first
    assert len(charges(tmp_path / "ledger.db")) == 18
    assert history.summary["at_clients"]["answered"] == 6


def test_an_answer_that_is_lost_after_it_was_paid_for_is_not_given_again_and_the_run_still_ends(
    small, tmp_path, monkeypatch
):
    settings = {"run": {"workers": 1, "randomness": "os"}}
    with monkeypatch.context() as patched:
        patched.setattr("tacit.engine.queries.keep", killed)
        with pytest.raises(KeyboardInterrupt):
            run(small, tmp_path, **settings)
    experiment = small(data=HELD, train={"rounds": 2}, **settings)
    history = tacit.run(experiment, out=tmp_path, resume=True, page=False)
    assert "answered once" in history.summary["at_clients"]["unknown"]
    assert len(charges(tmp_path / "ledger.db")) == 18


def test_answers_about_another_model_are_not_taken_for_this_one(small, tmp_path):
    run(small, tmp_path)
    records = json.loads((tmp_path / "queries.json").read_text())
    records["evaluation"]["question"] = "another model"
    (tmp_path / "queries.json").write_text(json.dumps(records))
    experiment = small(data=HELD, train={"rounds": 2}, run={"workers": 1})
    told = tacit.run(experiment, out=tmp_path, resume=True, page=False).summary["at_clients"]
    assert "earlier model" in told["unknown"]
    assert queries.in_words(told).startswith("not known: ")


def test_a_run_that_nobody_could_pay_for_ends_and_says_that_nothing_is_known(small, tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.simulation.refuse_spent", lambda parts: None)  # which says so before anything runs
    history = run(small, tmp_path, privacy={"noise_multiplier": 0.05})
    assert history.summary["stopped"] == "budget"
    assert "No client can pay for the query 'evaluation'" in history.summary["at_clients"]["unknown"]
    assert charges(tmp_path / "ledger.db") == []


def test_a_client_without_held_out_rows_answers_like_any_other_and_one_without_others_is_refused(small, tmp_path):
    few = {"clients": 6, "examples_per_client": 4, "held_out": 0.05}
    history = run(small, tmp_path, data=few, train={"rounds": 1, "sampling_rate": 0.5})
    held = build(small(data=few)).population.held
    assert not held.sizes.all()
    assert history.summary["at_clients"]["answered"] == 6
    with pytest.raises(BadData, match=r"data.held_out leaves client client-\d no row to train on: lower it"):
        build(small(data=few | {"held_out": 0.9}))


class Mixing(torch.nn.Module):
    """A model that lets every example of a batch see all others."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.last((x - 5 * x.mean(0, keepdim=True)).flatten(1))


def test_a_model_that_mixes_examples_cannot_make_one_record_count_for_many(small):
    parts = build(small(data=HELD))
    model = Mixing()
    theta = flatten(model)
    parts = replace(parts, model=model, theta=theta)
    held = parts.population.held
    query = queries.Evaluation(queries.judged_by(parts.experiment, parts.dataset), parts, theta.clone())
    whole = replace(held[0], x=held.x, y=held.y)
    for gone in range(0, len(held.y), 9):
        rest = [row for row in range(len(held.y)) if row != gone]
        change = query.count(whole).values - query.count(replace(whole, x=held.x[rest], y=held.y[rest])).values
        assert (change**2).sum() == 1


def test_the_plan_shows_the_price_of_the_evaluation_and_warns_of_one_that_tells_no_more_than_a_coin(small):
    rows = of_experiment(small(data=HELD, privacy={"query_shares": {"evaluation": 0.5}}))
    assert [row["evaluation_epsilon"][0] for row in rows] == [pytest.approx(e / 2, rel=0.01) for e in range(1, 7)]
    assert not any("note" in row for row in rows)
    (row,) = of_experiment(small(data=HELD, privacy={"query_shares": {"evaluation": 0.01}, "epsilon": 0.5}))
    assert re.search(r"accuracy on about \d+ held-out rows would tell no more than a coin", row["note"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"kind": "central", "epsilon": 3.0}}, "priced per record"),
        ({"privacy": {"unit": "client"}}, "priced per record"),
        ({"privacy": {"query_shares": {"evaluation": 1.1}}}, "query_shares.evaluation"),
        ({"data": HELD | {"held_out": 1.0}}, "held_out"),
        ({"data": HELD | {"held_out": None}, "privacy": {"query_shares": {"evaluation": 0.5}}}, "not asked for"),
        ({"metric": {"largest_error": -1.0}}, "largest_error"),
    ],
)
def test_what_no_ledger_would_pay_for_is_refused_when_it_is_said(small, changes, message):
    with pytest.raises(BadInput, match=message):
        small(**{"data": HELD} | changes)


def test_clients_say_their_log_loss_cut_at_a_declared_bound(small, tmp_path):
    metric = {"choose": "log-loss", "largest_error": 6.0}
    told = run(small, tmp_path, metric=metric, privacy={"kind": "none", "epsilon": None}).summary["at_clients"]
    assert told["metric"] == "log_loss"
    low, high = told["metrics"]["log_loss"]["interval"]
    assert 0 < low <= told["metrics"]["log_loss"]["value"] <= high < 6.0
    noised = run(small, tmp_path / "noised", metric=metric, privacy={"epsilon": 60.0}).summary["at_clients"]
    assert noised["answered"] == noised["clients"] == 6
    assert charges(tmp_path / "noised" / "ledger.db")


def test_a_metric_that_cannot_be_asked_for_is_refused_before_anybody_pays(small, tmp_path):
    with pytest.raises(BadInput, match="cannot be asked for brier"):
        run(small, tmp_path / "run", metric={"choose": "brier"})
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadInput, match="cannot be asked for brier"):
        of_experiment(small(data=HELD, metric={"choose": "brier"}))


def table(tmp_path, name, rows):
    lines = [f"{a:.3f},{b:.3f},{'yes' if a + b > 0 else 'no'}" for a, b in rows]
    (tmp_path / f"{name}.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")


@pytest.fixture
def sites(tmp_path):
    """Two csv clients without public test rows."""
    folder = tmp_path / "rows"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        table(folder, name, rng.normal(0, 1, (150, 2)))

    def made(**changes):
        data = {
            "name": "csv",
            "path": str(folder),
            "label": "y",
            "classes": ["no", "yes"],
            "numeric": {"a": [-3, 3], "b": [-3, 3]},
            "test_share": 0,
            "held_out": 0.3,
        }
        values = {
            "data": data,
            "train": {"rounds": 2, "local_steps": 3, "sampling_rate": 0.2},
            "privacy": {"kind": "local", "epsilon": 8.0},
            "run": {"workers": 1},
        }
        return changed(values, changes)

    return made


def test_a_run_without_public_test_rows_trains_and_says_what_it_cannot_know(sites, tmp_path):
    out = tmp_path / "run"
    history = tacit.run(sites(task={"kind": "binary"}), out=out)
    assert history.summary["test_auroc"] is history.summary["test_loss"] is None
    assert not {"auroc", "loss"} & set(history.rounds[0])
    assert any("no public test rows" in note for note in history.summary["notes"])
    assert "no public test rows" in facts(history.summary)["test AUROC, final model"]
    assert 0 <= history.summary["at_clients"]["metrics"]["auroc"]["value"] <= 1
    unknown = tacit.run(sites(data={"held_out": None}), out=tmp_path / "none", page=False).summary
    assert unknown["test_accuracy"] is None
    assert "at_clients" not in unknown
    assert "No round has ended yet" in (out / "report.html").read_text()  # the page's own script; it was written
    assert (out / "rounds.csv").read_text().startswith("round,train_loss")


def test_a_comparison_without_public_test_rows_is_refused_before_anything_runs(sites, tmp_path):
    refused = r"^A comparison draws what every round reaches on public test rows.* \(data\.test_path\), or set data\.test_share"
    with pytest.raises(BadInput, match=refused):  # no rule is to blame
        compare(sites(), {"aggregate.rule": ["mean", "weighted"]}, seeds=1, out=tmp_path / "out")
    with pytest.raises(BadInput, match=r"held out 0\.2: A comparison draws"):
        compare(sites(), {"data.held_out": [0.2, 0.3]}, seeds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_ledger_of_rows_held_out_otherwise_says_that_it_may_be_the_seed_or_the_share(sites, tmp_path):
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.3, "epsilon": 20.0}
    tacit.run(sites(privacy=shared | {"epsilon": 2.0}), out=tmp_path / "one", page=False)
    for changes, out in (({"run": {"seed": 5}}, "seed"), ({"data": {"held_out": 0.2}}, "share")):
        with pytest.raises(
            LedgerError,
            match=r"or rows are dealt out or held out by another seed \(seed\.data, run\.seed\) or share:",
        ):
            tacit.run(sites(privacy=shared, **changes), out=tmp_path / out, page=False)


def test_where_only_the_coins_of_held_out_rows_are_others_the_prices_of_runs_are_added(sites, tmp_path):
    table(tmp_path, "public", np.random.default_rng(1).normal(0, 1, (20, 2)))
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.3, "epsilon": 20.0}
    data = {"test_path": str(tmp_path / "public.csv"), "test_share": None}
    one, two = (
        tacit.run(
            sites(privacy=shared | {"epsilon": e}, data=data, run={"seed": seed}), out=tmp_path / f"{seed}", page=False
        )
        for e, seed in ((2.0, 0), (20.0, 5))
    )
    assert two.guarantee.others.runs == 1
    assert two.guarantee.others.epsilon >= one.guarantee.epsilon_max + two.guarantee.epsilon_max


def test_private_ranges_and_held_out_rows_go_together(sites, tmp_path):
    experiment = sites(data={"numeric": {"a": "private", "b": [-3, 3]}})
    history = tacit.run(experiment, out=tmp_path / "run", page=False)
    rounds = [round for _, round, _ in charges(tmp_path / "run" / "ledger.db")]
    assert rounds == [-1] * 2 + [0] * 2 + [1] * 2 + [-1] * 2
    assert set(history.summary["queries"]) == {"ranges", "evaluation"}
    for name in ("north", "south"):
        assert price.epsilon(history.ledger.composition(name, "record"), delta=1e-5) <= 8.0
    raw, found = build(experiment).population, history.summary
    scaled = build(experiment, ranges={"a": (-4.0, 4.0)}, mask=raw.mask).population
    assert (scaled.sizes == raw.sizes).all()  # who is held out was decided before anything was scaled
    assert found["at_clients"]["rows"] == pytest.approx(len(raw.held.y), abs=20)


def test_a_held_out_row_that_changes_hands_is_refused_by_the_ledger(sites, tmp_path):
    shared = {"privacy": {"ledger": str(tmp_path / "all.db"), "delta_share": 0.2, "noise_multiplier": 5.0}}
    tacit.run(sites(**shared), out=tmp_path / "one", page=False)
    held = build(sites()).population.held
    moved = held[0].x[0] * 6 - 3
    folder = tmp_path / "rows"
    north = (folder / "north.csv").read_text().splitlines()
    row = next(line for line in north[1:] if abs(float(line.split(",")[0]) - float(moved[0])) < 1e-3)
    (folder / "north.csv").write_text("\n".join(line for line in north if line != row) + "\n")
    with (folder / "south.csv").open("a") as south:
        south.write(row + "\n")
    with pytest.raises(LedgerError, match="a row of client north is now with client south"):
        tacit.run(sites(**shared), out=tmp_path / "two", page=False)


def test_numbers_as_targets_are_judged_by_errors_that_are_cut(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (600, 3)).astype(np.float32)
    y = (x @ np.array([0.5, -0.2, 0.1]) + rng.normal(0, 0.1, 600)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    data = {"name": "npz", "path": str(tmp_path / "rows.npz"), "classes": "numbers", "test_share": 0}
    experiment = tacit.Experiment(
        data=data | {"clients": 3, "held_out": 0.3},
        task={"kind": "regression"},
        metric={"largest_error": 2.0},
        train={"rounds": 3, "local_steps": 5, "sampling_rate": 0.3, "learning_rate": 0.2},
        privacy={"kind": "local", "epsilon": 20.0},
        run={"workers": 1},
    )
    told = tacit.run(experiment, out=tmp_path / "run", page=False).summary["at_clients"]
    low, high = told["metrics"]["rmse"]["interval"]
    assert 0 <= low <= told["metrics"]["rmse"]["value"] <= high < 1.0


def test_the_sentence_names_the_accountant_of_what_was_trained_and_of_what_was_asked(small, tmp_path):
    found = run(small, tmp_path / "run").guarantee
    trained, _, asked = found.accountant.partition(" for records trained on and ")
    assert trained.startswith(("PLD", "RDP"))
    assert asked == "GDP (closed form) for records held out"
    assert f"computed by {found.accountant}, for Poisson batches" in sentence(found)
