"""A client that opts out (epsilon = inf) beside finite ones: no noise, no charge, nothing promised, and everybody told so."""

import json
import math
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch
from trained import Stop, changed, same_model, stop_after

import tacit
from tacit.cli import ledger as shown_ledger
from tacit.cli.app import app
from tacit.engine.assemble import assemble, build
from tacit.engine.run_files import read
from tacit.errors import BadInput, LedgerError
from tacit.experiment import Experiment
from tacit.lab.audit.mechanism import audit
from tacit.lab.tuning.price import refuse_unsearchable
from tacit.privacy.guarantee import NOTHING_PROMISED
from tacit.privacy.ledger import reader
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.local import SampledGaussian, Unnoised
from tacit.random import seeded
from tacit.report import collect
from tacit.report import plan as plans
from tacit.types import Bounded

EPSILONS = [1.0, 1.0, 1.0, 3.0, math.inf]
OUT = {
    "name": "out",
    "data": {"clients": 5, "examples_per_client": 40},
    "train": {"rounds": 3, "local_steps": 2, "batch_size": 10},
    "privacy": {"kind": "local", "epsilon": EPSILONS, "delta": 1e-3, "clip": 0.5},
    "run": {"workers": 1},
}
SAID = "every client but client-4, which opted out and is promised nothing"


def out(**changes):
    return changed(OUT, changes)


def charged(folder):
    with sqlite3.connect(folder / "ledger.db") as book:
        return dict(book.execute("SELECT client, COUNT(*) FROM charges GROUP BY client"))


def test_it_is_not_charged_and_every_word_about_the_run_says_that_nothing_is_promised(tmp_path, capsys):
    history = tacit.run(out(), out=tmp_path)
    assert charged(tmp_path) == {f"client-{k}": 3 for k in range(4)}
    assert history.guarantee.unpromised == ("client-4",)
    assert SAID in history.sentence
    assert 0 < history.guarantee.epsilon_min <= 1  # and not the 0 of whoever paid nothing
    assert history.rounds[-1]["epsilon_loosest"] == history.guarantee.epsilon_max > 1
    assert json.loads((tmp_path / "summary.json").read_text())["guarantee"]["whom"] == SAID
    page = collect.run_page(read(tmp_path))
    assert page["clients"]["limits"] == [1.0, 1.0, 1.0, 3.0, NOTHING_PROMISED]
    assert page["clients"]["spent"][:4] == sorted(page["clients"]["spent"][:4])
    assert page["clients"]["spent"][4] is None
    assert sum(curve["clients"] for curve in page["curves"]) == 4
    assert SAID in page["sentence"]
    shown_ledger.show(tmp_path, None)
    said = " ".join(capsys.readouterr().out.split())
    assert f"client-4 opted out of the run beside this ledger: {NOTHING_PROMISED}, and nothing is charged" in said
    assert not any(entry["client"] == "client-4" for entry in reader.entries(tmp_path / "ledger.db"))
    assert list(reader.faults(tmp_path / "ledger.db")) == []


@pytest.mark.parametrize("epsilons", [[math.inf, 2.0, 1.0], [math.inf, 1.0, 2.0], [math.inf, math.inf, 1.0]])
def test_a_first_client_that_opts_out_does_not_stand_for_what_the_others_have_spent(tmp_path, epsilons):
    history = tacit.run(out(data={"clients": 3}, privacy={"epsilon": epsilons}), out=tmp_path, page=False)
    last, spent = history.rounds[-1], history.guarantee
    assert (last["epsilon_tightest"], last["epsilon_loosest"]) == (spent.epsilon_min, spent.epsilon_max)
    assert min(one["epsilon_tightest"] for one in history.rounds) > 0


def test_the_terminal_and_a_statement_for_a_registry_say_so(tmp_path, capsys):
    path = tmp_path / "e.toml"
    path.write_text(out().toml())
    for command in (["run", str(path), "--out", str(tmp_path / "run")], ["statement", str(tmp_path / "run")]):
        with pytest.raises(SystemExit):
            app(command)
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"for {SAID}: epsilon at most" in said
    stated = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert [one["epsilon"] is None for one in stated["clients"]] == [False] * 4 + [True]
    assert stated["guarantee"]["whom"] == SAID


def test_a_plan_says_so_too():
    rows = plans.of_experiment(out())
    assert [row["guarantee"] == NOTHING_PROMISED for row in rows] == [False, False, True]
    assert (rows[-1]["names"], rows[-1]["noise_multiplier"]) == (["client-4"], [0.0, 0.0])
    assert f"client-4: {NOTHING_PROMISED}" in str(plans.table(rows).caption)
    assert "1 opted out" in build(out()).plan.title(out())


def test_its_mechanism_draws_and_clips_like_the_others_adds_nothing_and_has_no_price():
    plan, population = build(out()).plan, build(out()).population
    mine, other = plan.mechanism(population[4]), plan.mechanism(population[0])
    assert (type(mine), type(other)) == (Unnoised, SampledGaussian)
    assert (mine.clip, mine.sampling_rate, mine.steps) == (other.clip, other.sampling_rate, other.steps)
    vector = torch.ones(4)
    _, sent = mine.noise({}, seeded(0)("x"), Bounded(vector, 0.5))
    assert torch.equal(sent.vector, vector)
    assert sent.noise_std == 0
    assert mine.event() is None
    with pytest.raises(BadInput, match="made for sensitivity"):
        mine.noise({}, seeded(0)("x"), Bounded(vector, 1.0))
    with pytest.raises(BadInput, match="adds no noise"):
        Unnoised(1.0, 0.5, 0.1)
    for name in ("clip", "sampling_rate"):
        with pytest.raises(BadInput):
            Unnoised(**{"noise_multiplier": 0.0, "clip": 0.5, "sampling_rate": 0.1, "steps": 1} | {name: -1.0})


@pytest.mark.parametrize("rule", ["random-effects", "inverse-variance", "weighted", "pfa", "mean", "robust", "median"])
def test_every_rule_takes_it(rule, tmp_path):
    history = tacit.run(out(aggregate={"rule": rule}), out=tmp_path, page=False)
    assert math.isfinite(history.summary["loss"] if "loss" in history.summary else history.rounds[-1]["loss"])


def test_rules_weigh_it_like_the_loosest_and_pfa_takes_it_as_public():
    parts = build(out(aggregate={"rule": "pfa"}))
    statistics = parts.algorithm.server.statistics
    assert statistics.epsilons.tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    assert statistics.noise_stds[4] == statistics.noise_stds[3]
    assert statistics.least_noise == statistics.noise_stds[4]
    assert statistics.facts(40, math.inf)["epsilon"] == 3.0
    rule, memory = parts.algorithm.server.rule, parts.algorithm.init(parts.params).memory
    told = rule.tell(memory, np.array([1.0, 3.0]))
    assert rule.send(torch.zeros(2), statistics.facts(40, math.inf), told)[1] == {"group": "public"}


def test_a_round_in_which_only_it_takes_part_is_known_to_the_ledger_and_a_stopped_run_goes_on(tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    alone = out(privacy={"epsilon": [1.0] + [math.inf] * 4}, train={"clients_per_round": 1, "rounds": 6})
    tacit.run(alone, out=whole, page=False)
    assert set(charged(whole)) <= {"client-0"}
    with pytest.raises(Stop):
        tacit.run(alone, out=part, observe=stop_after(3), page=False)
    tacit.run(alone, out=part, resume=True, page=False)
    assert same_model(whole, part)
    assert charged(whole) == charged(part)


def test_nobody_with_a_limit_is_ever_let_in_without_a_price(tmp_path):
    ledger, parts = Ledger(tmp_path / "l.db", population="p", run="r", rounds=3), build(out())
    ledger.open_round(0, "a")
    with pytest.raises(LedgerError, match="no price for a client that has a limit"):
        ledger.admit([parts.population[0], parts.population[4]], lambda client: None)
    assert list(ledger.entries()) == []
    assert not ledger.knows(0)


def test_an_audit_still_covers_everybody_else():
    assert not audit(build(out()), seed=0, plant=None, trainers=["one by one"]).alarming
    assert audit(build(out()), seed=0, plant="noise=0.67", trainers=["one by one"]).alarming


def test_in_a_deployment_nobody_opts_out():
    parts = build(out())
    for place in ({"place": "server"}, {"own": 0}, {"own": 4}):
        with pytest.raises(BadInput, match=r"client-4 sets no limit .* in a deployment no site opts out"):
            assemble(out(), parts.dataset, parts.population, **place)


def test_where_noise_is_given_an_infinite_budget_is_charged_like_any_other(tmp_path):
    given = out(privacy={"noise_multiplier": 2.0})
    assert not build(given).plan.opted_out
    tacit.run(given, out=tmp_path, page=False)
    assert charged(tmp_path)["client-4"] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": {"epsilon": math.inf}}, 'set privacy.kind = "none"'),
        ({"privacy": {"epsilon": [math.inf] * 5}}, 'set privacy.kind = "none"'),
        ({"privacy": {"level": "maximum"}}, 'set privacy.kind = "none"'),
        ({"privacy": {"kind": "distributed", "unit": "record"}}, "nobody can opt out of a sum"),
        ({"privacy": {"kind": "central", "unit": "record"}}, "nobody can opt out of a sum"),
        ({"privacy": {"kind": "central"}}, "nobody can opt out of a sum"),
        ({"privacy": {"kind": "distributed"}}, "opt out of a sum"),
        ({"privacy": {"epsilon": [1.0, -1.0, 1.0, 1.0, 1.0]}}, r"privacy.epsilon\[1\] > 0, got -1.0"),
        ({"privacy": {"epsilon": [1.0, 0.0, 1.0, 1.0, 1.0]}}, r"privacy.epsilon\[1\] > 0, got 0.0"),
        ({"privacy": {"epsilon": [1.0, math.nan, 1.0, 1.0, 1.0]}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": {"client-0": -2.0}}}, "privacy.epsilon of client-0 > 0, got -2.0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_data_is_read(change, words):
    with pytest.raises(BadInput, match=words) as refusal:
        out(**change)
    assert "\n" not in str(refusal.value)


def test_canaries_a_search_and_queries_are_refused():
    with pytest.raises(BadInput, match="Canaries at a client that opted out"):
        build(out(audit={"canaries": 5}))
    with pytest.raises(BadInput, match="A search has no price for a client that opts out"):
        refuse_unsearchable(out())
    with pytest.raises(BadInput, match="Client client-4 sets no limit"):
        build(out(data={"held_out": 0.2}))


def test_runs_that_share_a_ledger_let_nobody_opt_out_for_later_ones_would_promise_what_is_gone(tmp_path):
    """The second run would begin with a model that has client-4's records in it, and promise client-4 the sum of both."""
    book = tmp_path / "shared.db"
    shared = {"ledger": str(book), "delta_share": 0.4}
    with pytest.raises(BadInput, match=r"privacy\.ledger adds up what runs have cost each client"):
        tacit.run(out(privacy=shared), out=tmp_path / "one", page=False)
    assert not book.exists()
    first = tacit.run(out(), out=tmp_path / "alone", page=False)
    with pytest.raises(LedgerError, match="nobody knows what it has seen of these records"):
        tacit.run(out(privacy=shared | {"epsilon": 2.0}), out=tmp_path / "two", page=False, model=first.model)


def test_a_file_in_which_all_opt_out_is_refused_too(tmp_path):
    (tmp_path / "e.csv").write_text("client,epsilon\n" + "".join(f"client-{k},inf\n" for k in range(5)))
    with pytest.raises(BadInput, match='set privacy.kind = "none"'):  # noqa: RUF043
        build(out(privacy={"epsilon": {"file": str(tmp_path / "e.csv")}}))


def test_the_refusal_comes_before_torch_is_loaded():
    code = (
        "import sys\nfrom tacit.experiment import Experiment\n"
        "try:\n    Experiment(privacy={'kind': 'local', 'epsilon': float('inf')})\n"
        "except Exception as error:\n    print(error)\nprint('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'set privacy.kind = "none"' in said
    assert said.strip().endswith("False")


def test_toml_writes_and_reads_it(tmp_path):
    (tmp_path / "e.toml").write_text(out().toml())
    assert Experiment.load(tmp_path / "e.toml").privacy.epsilon[4] == math.inf
