"""What several runs of a federation cost each site together: what their ledgers will add up."""

import json
import sqlite3
from dataclasses import asdict

import pytest
from federation.operate.test_init_and_check import make
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate.remaining import declared_roster, price_of_runs
from tacit.deploy.site.agreement import terms_of
from tacit.deploy.site.rows import public_rows, shape
from tacit.deploy.site.site import Site
from tacit.engine.assemble import assemble
from tacit.errors import BadInput
from tacit.wire import pack

LOCAL = {"privacy": {"kind": "local", "epsilon": [1.0, 2.0, 4.0], "delta_share": 0.25}}


@pytest.fixture
def federation(tmp_path):
    return make(tmp_path / "federation", **LOCAL)


def budget(federation, name, old, new):
    path = federation.site(name) / "budget.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_runs_of_a_federation_add_up_and_say_how_many_of_them_a_budget_pays_for(federation):
    budget(federation, "client-1", "epsilon = 2.0", "epsilon = 9.0")
    budget(federation, "client-2", "epsilon = 4.0", "epsilon = 100.0")
    one, other, last = price_of_runs(federation, runs=5)
    assert (one["site"], one["unit"]) == ("client-0", "record")
    assert 0.9 < one["epsilon_of_one"] <= 1.0
    assert (one["epsilon"], one["pays_for"]) == (5 * one["epsilon_of_one"], 1)
    assert 1.8 < other["epsilon_of_one"] <= 2.0  # as the experiment names it, whatever the site allows over all runs
    assert other["pays_for"] == 4  # by delta as well: four runs at a quarter
    assert (last["pays_for"], last["budget_delta"] / last["delta_of_one"]) == (4, 4.0)


def test_the_price_of_one_run_is_what_the_sites_own_ledger_seals(federation):
    priced = price_of_runs(federation, runs=2)[0]
    trained_once(federation)
    with sqlite3.connect(federation.site("client-0") / "ledger.db") as book:
        ((epsilon,),) = book.execute("SELECT epsilon FROM seals").fetchall()
    assert epsilon == priced["epsilon_of_one"]
    assert price_of_runs(federation, runs=2)[0]["sealed_epsilon"] == epsilon


def trained_once(federation):
    """One site of the federation trains one round of a run."""
    experiment = tacit.Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    (roster, _), rows = declared_roster(federation, experiment), public_rows(experiment)
    population = roster.population(shape(rows))
    parts = assemble(experiment, rows, population, place="server")
    terms = asdict(terms_of(parts, parts.population[0], epsilon=1.0))
    site, run = Site(federation.site("client-0")), "0" * 32
    asked = {"run": run, "experiment": experiment.toml(), "roster": roster.record(), "terms": terms}
    site.answer({"kind": "agree", **asked}, b"")
    message = parts.algorithm.broadcast(parts.algorithm.init(parts.params), [parts.population[0]], round=0)
    site.answer({"kind": "train", "run": run, "round": 0}, pack(message))


def test_the_command_prices_a_federation_and_refuses_to_search_in_it(federation):
    folder = str(federation.folder)
    shown = CliRunner().invoke(app, ["tune", folder, "--runs", "3", "--price"])
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())
    assert "basic composition of what each run seals" in said
    assert "The budget of client-0, client-1, client-2 cannot pay for 3 runs" in said
    told = json.loads(CliRunner().invoke(app, ["tune", folder, "--runs", "3", "--price", "--json"]).stdout)
    assert [one["pays_for"] for one in told] == [1, 1, 1]
    for more in ([], ["--vary", "train.learning_rate=0.1,0.2", "--price"]):
        refused = CliRunner().invoke(app, ["tune", folder, "--runs", "3", *more])
        assert isinstance(refused.exception, BadInput)


def test_runs_without_a_promise_or_of_sites_that_are_elsewhere_have_no_price(federation, tmp_path):
    with pytest.raises(BadInput, match="promises nothing"):
        price_of_runs(make(tmp_path / "free", privacy={"kind": "none", "epsilon": None}), runs=2)
    federation.site("client-2").rename(tmp_path / "away")
    with pytest.raises(BadInput, match="its folder is not here"):
        price_of_runs(federation, runs=2)
