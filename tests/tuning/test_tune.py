"""`tacit tune`: paid before it runs, resumable, and its best is published. Real runs on scikit-learn's digits."""

import json
import shutil
import sqlite3
from dataclasses import replace

import pytest
from dp_accounting import SelfComposedDpEvent
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.engine.assemble import build
from tacit.errors import BadInput, BudgetExhausted, LedgerError, RunExists, TrainingDiverged
from tacit.lab.compare.grid import SEARCH
from tacit.lab.tuning import search
from tacit.lab.tuning.price import Releases, composed
from tacit.lab.tuning.search import price_of, tune
from tacit.privacy.accounting import price
from tacit.privacy.ledger import reader as ledgers
from tacit.privacy.ledger.ledger import Ledger
from tacit.simulation import run as really_run

CENTRAL = {
    "name": "small",
    "data": {"clients": 12, "examples_per_client": 20},
    "train": {"rounds": 2, "clients_per_round": 4, "local_steps": 1, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": 8.0, "clip": 0.5, "noise_multiplier": 2.0},
    "run": {"workers": 1},
}
SIZED = {"noise_multiplier": None}  # noise that follows from epsilon
RATES = {"train.learning_rate": [0.1, 0.5]}


def settings(**changes):
    return {
        **CENTRAL,
        **{key: CENTRAL.get(key, {}) | value if isinstance(value, dict) else value for key, value in changes.items()},
    }


def local(**changes):
    train = {"rounds": 2, "local_steps": 1, "sampling_rate": 0.5}
    privacy = {"kind": "local", "epsilon": 4.0}
    return {**CENTRAL, "data": {"clients": 3, "examples_per_client": 30}, "train": train, "privacy": privacy, **changes}


@pytest.fixture
def watched(monkeypatch):
    """The histories of all runs of a search."""

    class Watched(list):
        stop_at = None

        def stopped(self, at, values, **how):
            """Begins a search that is interrupted in the run of that number, after its first round."""
            self.stop_at = at
            with pytest.raises(KeyboardInterrupt):
                tune(values, RATES, **how)
            self.stop_at = None

    seen = Watched()

    def run(experiment, **how):
        def observe(record):
            if seen.stop_at == len(seen):
                raise KeyboardInterrupt

        seen.append(really_run(experiment, observe=observe, **how))
        return seen[-1]

    monkeypatch.setattr(search, "run", run)
    return seen


def read(path, query):
    """What a query to a ledger finds."""
    with sqlite3.connect(path / "ledger.db") as db:
        return db.execute(query).fetchall()


def charges(path):
    return read(path, "SELECT text FROM everybody JOIN events ON events.id = everybody.event")


SEALS = "SELECT client, epsilon FROM seals"
PAID = "SELECT client, text FROM charges JOIN events ON events.id = charges.event ORDER BY client, round"


def test_the_best_of_what_was_run_is_published_without_times_and_traffic(tmp_path, watched):
    found = tune(settings(), RATES, runs=3, out=tmp_path / "s")
    scores = [history.summary["test_accuracy"] for history in watched]
    assert len(scores) == 3
    assert found["test_accuracy"] == max(scores)
    assert found["settings"]["train.learning_rate"] in (0.1, 0.5)
    best = {path.name for path in (tmp_path / "s" / "best").iterdir()}
    assert best == {"encoder.json", "experiment.toml", "model.safetensors", "summary.json"}
    assert not {"seconds", "uplink_bytes", "downlink_bytes", "notes", "stopped", "out_of_budget", "run"} & set(found)
    tacit.load(tmp_path / "s" / "best")
    with pytest.raises(BadInput, match="best of a search"):
        tacit.engine.run_files.read(tmp_path / "s" / "best")


def test_a_search_is_paid_for_before_anything_is_run(tmp_path, monkeypatch):
    priced, _ = price_of(settings(), RATES, runs=3)

    def run(experiment, *, out, **_):
        (text,) = charges(tmp_path)[0]
        assert price.epsilon(((price.from_text(text), 1),), delta=priced.delta) == pytest.approx(priced.epsilon)
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "run", run)
    with pytest.raises(KeyboardInterrupt):
        tune(settings(), RATES, runs=3, out=tmp_path)
    assert len(charges(tmp_path)) == 1


def test_a_search_that_was_killed_goes_on_and_pays_once(tmp_path, watched):
    watched.stopped(2, settings(), runs=4, out=tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "again")
    first = search_on(tmp_path / "s")  # as the command line does
    assert len(watched) == 4  # the two that had ended were not run again
    search_on(tmp_path / "again")
    models = [(tmp_path / name / "best" / "model.safetensors").read_bytes() for name in ("s", "again")]
    assert models[0] == models[1]
    assert len(charges(tmp_path / "s")) == 1
    assert search_on(tmp_path / "s") == first


def test_every_run_has_noise_and_cohorts_of_its_own_although_one_seed_is_given(tmp_path, watched):
    tune(settings(), {"train.learning_rate": [0.5]}, runs=3, out=tmp_path)
    assert len({history.summary["test_loss"] for history in watched}) == 3


def test_every_release_of_a_run_is_keyed_by_its_place_in_a_search():
    parts = search.build(tacit.Experiment(**settings()))
    named = search.replace(parts, trial_id="a")
    assert parts.releases.server_key != named.releases.server_key
    assert parts.releases.client(parts.population[0]) != named.releases.client(named.population[0])
    assert parts.releases._planted == ()


def test_the_noise_keeps_the_budget_of_the_clients_over_the_whole_search():
    priced, unit = price_of(settings(privacy=SIZED), RATES, runs=10)
    assert unit == "client"
    assert 0.9 * 8 < priced.epsilon <= 8
    alone, one = (
        build(run).plan.mechanism for run in (tacit.Experiment(**settings(privacy=SIZED)), priced.runs[0].experiment)
    )
    assert one.noise_multiplier > alone.noise_multiplier
    paid = price.compose([(priced.events[""], 1)])
    assert paid == price.compose([(one.event(), 2 * 10)]), "what is paid for is what is run"


def test_a_search_counts_on_a_shared_ledger_and_finds_what_is_left(tmp_path):
    said = settings(privacy={"ledger": str(tmp_path / "shared.db"), "delta_share": 0.4})
    shared = settings(privacy=said["privacy"] | SIZED)
    found = tune(said, RATES, runs=3, out=tmp_path / "first")
    sealed = ledgers.read_before(tmp_path / "shared.db", unit="client").of("")
    assert sealed.epsilon == pytest.approx(found["guarantee"]["epsilon"]["max"])
    assert sealed.delta == pytest.approx(0.4e-5)
    second, _ = price_of(shared, RATES, runs=3)
    assert second.epsilon <= 8 - sealed.epsilon
    (tmp_path / "shared.db").unlink()
    (tmp_path / "shared.db.mark").unlink()
    with pytest.raises(LedgerError, match="restore"):
        tune(shared, RATES, runs=3, out=tmp_path / "second")


def test_a_search_that_cannot_be_paid_for_is_refused_with_what_it_lacks_and_nothing_is_written(tmp_path):
    for noise, runs in ((0.5, 10), (0.1, 2)):  # too dear, and without a finite price
        lacks = f"no round of {runs} runs: raise their epsilon or the noise.*Nothing was written"
        with pytest.raises(BudgetExhausted, match=lacks):
            tune(settings(privacy={"noise_multiplier": noise}), RATES, runs=runs, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.6, "epsilon": 100.0}
    tune(settings(privacy=shared), RATES, runs=2, out=tmp_path / "first")
    with pytest.raises(
        BudgetExhausted, match=r"takes delta 6e-06, and .* have left 4e-06 .*: lower privacy.delta_share"
    ) as caught:
        tune(settings(privacy=shared), RATES, runs=2, out=tmp_path / "second")
    assert "noise" not in str(caught.value)


@pytest.mark.parametrize("seen", [False, True], ids=["hidden", "seen"])
def test_a_search_that_is_killed_just_after_the_ledger_knows_of_its_start_is_not_lost(
    tmp_path, monkeypatch, watched, seen
):
    real = Ledger.release

    def killed(self, what, digest):
        real(self, what, digest)
        if "start" in what:
            raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "release", killed)
    made = local if seen else settings
    with pytest.raises(KeyboardInterrupt):
        tune(made(run={"workers": 1, "randomness": "os"}), RATES, runs=2, out=tmp_path / "one")
    monkeypatch.setattr(Ledger, "release", real)
    assert search_on(tmp_path / "one")["test_accuracy"] >= 0


def test_an_older_ledger_that_does_not_know_what_a_search_released_is_noticed(tmp_path, watched):
    """The charge comes first and the release long after it: a copy of the ledger in between has all charges."""
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.5}
    search_of = settings(privacy=shared, run={"randomness": "os"})
    watched.stopped(0, search_of, runs=3, out=tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    old = (tmp_path / "shared.db").read_bytes()
    search_on(tmp_path / "one")
    (tmp_path / "shared.db").write_bytes(old)
    with pytest.raises(LedgerError, match="is an older copy"):
        search_on(tmp_path / "two")
    assert not (tmp_path / "two" / "best").exists()


def test_a_score_that_is_no_number_is_none():
    assert search.score_of(tacit.Experiment(), {"test_accuracy": float("nan")}) is None
    assert search.score_of(tacit.Experiment(), {}) is None


def test_a_candidate_whose_clients_would_pay_another_price_is_refused_before_anything_is_charged(tmp_path, monkeypatch):
    def dearer(*asked):
        priced = composed(*asked)
        train = settings(train={"rounds": 3})
        return replace(priced, runs=tuple(replace(one, experiment=tacit.Experiment(**train)) for one in priced.runs))

    monkeypatch.setattr(search.price, "composed", dearer)
    with pytest.raises(BadInput, match="another price than that of the search"):
        tune(settings(), RATES, runs=4, out=tmp_path / "search")
    assert not (tmp_path / "search").exists()


SURE = {"privacy.clip": [0.01, 500.0]}  # with the noise of the second, a model is too sure for the metric


def test_a_run_whose_metric_cannot_be_told_of_its_model_loses_and_does_not_end_a_search_that_was_paid_for(
    tmp_path,
):
    modest = settings(metric={"choose": "foreign_losses:modest"})
    found = tune(modest, SURE, runs=4, out=tmp_path / "s")
    assert found["settings"]["privacy.clip"] == 0.01
    with pytest.raises(TrainingDiverged, match=r"No run of the search.* a metric that every model has"):
        tune(modest, {"privacy.clip": [500.0]}, runs=4, out=tmp_path / "all")
    assert not (tmp_path / "all" / "best").exists()


@pytest.mark.parametrize(
    ("changes", "vary", "sentence"),
    [
        ({"privacy": {"kind": "none", "epsilon": None}}, RATES, "tacit compare"),
        ({"personal": {"kind": "mean-regularised"}, "data": {"own_share": 0.3}}, RATES, r"\[personal\]"),
        ({"audit": {"canaries": 10}}, RATES, r"\[audit\]"),
        ({"privacy": {"sampler": "cyclic"}}, RATES, "cohorts are public"),
        ({}, {"privacy.sampler": ["poisson", "cyclic"]}, "cannot vary privacy.sampler"),
        ({"privacy": {"epsilon": float("inf")} | SIZED}, RATES, "noise_multiplier"),
        ({}, {}, "Nothing is varied"),
        ({}, {"data.clients": [3, 4]}, "cannot vary data.clients"),
        ({}, {"run.seed": [3, 4]}, "cannot vary run.seed"),
        ({}, {"privacy.epsilon": [3, 4]}, "cannot vary privacy.epsilon"),
        ({}, {"metric.choose": ["f1", "auroc"]}, "cannot vary metric.choose"),
        ({}, {"train.learning_rate": [-1, 2]}, "learning_rate"),
        ({}, {"model.name": ["logr", "no-such"]}, "no-such"),
        ({"runs": 1}, RATES, "tacit run"),
        ({"runs": -3}, RATES, "tacit run"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(tmp_path, changes, vary, sentence):
    runs = changes.get("runs", 3)
    with pytest.raises(BadInput, match=sentence):
        tune(
            settings(**{key: one for key, one in changes.items() if key != "runs"}), vary, runs=runs, out=tmp_path / "s"
        )
    assert not (tmp_path / "s").exists()


def test_a_search_without_a_public_score_is_refused(tmp_path):
    rows = "".join(f"h{n % 4},{n % 7},{'ab'[n % 2]}\n" for n in range(40))
    (tmp_path / "rows.csv").write_text(f"hospital,x,y\n{rows}")
    data = {
        "name": "csv",
        "path": str(tmp_path / "rows.csv"),
        "label": "y",
        "classes": ["a", "b"],
        "client_column": "hospital",
    }
    data |= {"partition": "natural", "numeric": {"x": [0, 7]}, "test_share": 0}
    with pytest.raises(BadInput, match="scored on public rows"):
        tune({**CENTRAL, "data": data}, RATES, runs=3, out=tmp_path / "s")
    with pytest.raises(BadInput, match=r"scored on public rows.*test_path.*data\.held_out"):
        tune(local(data=data), RATES, runs=3, out=tmp_path / "s")
    with pytest.raises(BadInput, match=r"a search would choose by chance.*no more than a coin"):
        tune(local(data=data | {"held_out": 0.3}), RATES, runs=3, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_search_goes_on_as_it_was_asked_for_and_is_not_overwritten(tmp_path, watched):
    watched.stopped(1, settings(), runs=3, out=tmp_path)
    with pytest.raises(RunExists, match="--resume"):
        tune(settings(), RATES, runs=3, out=tmp_path)
    with pytest.raises(BadInput, match="other settings"):
        tune(settings(), RATES, runs=4, out=tmp_path, resume=True)
    with pytest.raises(BadInput, match="no search to resume"):
        tune(settings(), RATES, runs=3, out=tmp_path / "elsewhere", resume=True)


def test_a_local_search_is_priced_as_composed_for_each_client_by_its_own_budget(tmp_path, watched):
    epsilons = {"client-0": 2.0, "client-1": 4.0, "client-2": 4.0}
    found = tune(local(privacy={"kind": "local", "epsilon": epsilons}), RATES, runs=3, out=tmp_path)
    assert [history.guarantee is not None for history in watched] == [True] * 3
    assert "3 runs, all of which are seen" in found["sentence"]
    sealed, rows = dict(read(tmp_path, SEALS)), read(tmp_path, PAID)
    assert len(rows) == 3
    for name, text in rows:
        event = price.from_text(text)
        assert price.epsilon(((event, 1),), delta=1e-5) == sealed[name]
        assert 0.9 * epsilons[name] < sealed[name] <= epsilons[name]
        alone = price.epsilon(_of_run(tmp_path, name), delta=1e-5)
        assert price.compose([(event, 1)]) == price.compose(3 * list(_of_run(tmp_path, name)))
        assert alone < sealed[name]


def _of_run(path, name):
    """What one of the runs charged to a client."""
    return price.compose([(price.from_text(text), 1) for who, text in read(path / "runs" / "001", PAID) if who == name])


def test_a_run_that_was_seen_is_never_released_again_where_its_folder_is_gone(tmp_path, watched):
    watched.stopped(1, local(run={"workers": 1, "randomness": "os"}), runs=2, out=tmp_path / "search")
    shutil.rmtree(tmp_path / "search" / "runs" / "001")
    for lost in ("001", "runs"):
        with pytest.raises(LedgerError, match="is gone"):
            search_on(tmp_path / "search")
        assert not (tmp_path / "search" / "runs" / "001").exists()
        (tmp_path / "search" / "begun.json").unlink(missing_ok=lost == "runs")
    assert len(watched) == 1


@pytest.mark.parametrize("stopped", [0, 1], ids=["within a run", "between two runs"])
@pytest.mark.parametrize("losers", [None, "seen"], ids=["local", "central"])
def test_of_a_search_whose_runs_are_seen_no_copy_or_older_folder_releases_a_run_again(
    tmp_path, monkeypatch, watched, losers, stopped
):
    """One charge stands for the releases of each run, and noise of the operating system never comes again."""
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.5}
    kind = settings if losers else local
    values = kind(run={"workers": 1, "randomness": "os"})
    values["privacy"] = {**values["privacy"], **shared} | ({} if losers is None else SIZED)
    if stopped:
        copied_before(monkeypatch, tmp_path, number=2)
    else:
        watched.stopped(0, values, runs=2, out=tmp_path / "one")
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    if stopped:
        tune(values, RATES, runs=2, out=tmp_path / "one")
    else:
        search_on(tmp_path / "one")
    known, begun = len(watched), json.loads((tmp_path / "two" / "begun.json").read_text("utf-8"))
    for made_up in ([], ["made up"]):  # starts that the copy did not have
        said = {str(1 + stopped): begun.get(str(1 + stopped), []) + made_up}
        (tmp_path / "two" / "begun.json").write_text(json.dumps(begun | said), "utf-8")
        with pytest.raises(LedgerError, match=r"a copy of the folder went on before|is gone"):
            search_on(tmp_path / "two")
    assert len(watched) == known, "no run went on in the copy"


def copied_before(monkeypatch, tmp_path, *, number):
    """Copies the folder of a search just before the run of that number begins."""
    real = search.run_place

    def place(path, which):
        if which == number and not (tmp_path / "two").exists():
            shutil.copytree(path, tmp_path / "two")
        return real(path, which)

    monkeypatch.setattr(search, "run_place", place)


def test_a_seeded_search_whose_runs_are_seen_goes_on_from_an_older_folder_with_the_same_bits(tmp_path, watched):
    watched.stop_at = 1
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.5}
    values = local()
    values["privacy"] = {**values["privacy"], **shared}
    with pytest.raises(KeyboardInterrupt):
        tune(values, RATES, runs=2, out=tmp_path / "one")
    watched.stop_at = None
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert search_on(tmp_path / "one")["test_accuracy"] == search_on(tmp_path / "two")["test_accuracy"]


def search_on(path):
    values, vary, runs = SEARCH.read(path)
    return tune(values, vary, runs=runs, out=path, resume=True)


def test_runs_that_are_all_seen_have_one_price(tmp_path):
    with pytest.raises(BadInput, match="vary what costs nothing"):
        tune(local(), {"train.sampling_rate": [0.25, 0.5]}, runs=3, out=tmp_path / "s")


def test_a_search_by_distributed_noise_is_composed():
    data, train = {"clients": 4, "examples_per_client": 20}, {"rounds": 1, "local_steps": 1, "batch_size": 10}
    values = settings(data=data, privacy={"kind": "distributed", "epsilon": 20.0} | SIZED)
    priced, unit = price_of({**values, "train": train}, RATES, runs=2)
    assert unit == "client"
    assert priced.one < priced.epsilon <= 20


@pytest.mark.parametrize("kind", ["central", "distributed"])
def test_a_search_over_sums_of_records_is_paid_by_each_client_from_its_own_budget(kind, tmp_path):
    budgets = {"client-0": 2.0, "client-1": 4.0, "client-2": 8.0}
    privacy = {"kind": kind, "unit": "record", "epsilon": budgets, "rate_cap": 9.0, "delta": 1e-3}
    said = []
    values = local(privacy=privacy, train={"rounds": 2, "local_steps": 1})
    tune(values, RATES, runs=2, out=tmp_path / "s", announce=lambda *told: said.append(told))
    ((priced, unit),) = said
    assert unit == "record"
    for name, epsilon in budgets.items():
        assert 0 < price.epsilon(price.compose([(priced.events[name], 1)]), delta=1e-3) <= epsilon
    spent = {name: [] for name in budgets}
    for run in sorted((tmp_path / "s" / "runs").iterdir()):
        with sqlite3.connect(run / "ledger.db") as book:
            for client, text in book.execute(
                "SELECT client, text FROM charges JOIN events ON events.id = charges.event"
            ):
                spent[client].append((price.from_text(text), 1))
    for name, events in spent.items():
        assert len(events) == 4
        together = price.epsilon(price.compose(events), delta=1e-3)
        assert together <= budgets[name], "both runs in total keep to each client's own budget"
        assert together <= price.epsilon(price.compose([(priced.events[name], 1)]), delta=1e-3) * (1 + 1e-9)


def test_the_command_prints_prices_and_refuses_in_a_sentence(tmp_path):
    chosen = ["--set", "data.clients=12", "--set", "train.rounds=2", "--set", "train.sampling_rate="]
    central = [*chosen, "--set", "privacy.kind=central", "--set", "privacy.epsilon=8"]
    shown = CliRunner().invoke(app, ["tune", "digits", *central, "--vary", "train.learning_rate=0.1,1", "--price"])
    assert shown.exit_code == 0, shown.output
    for words in ("One run costs epsilon", "10 runs, all of which are seen", "Charged: "):
        assert words in shown.output
    again = CliRunner().invoke(app, ["tune", "digits", "--resume", "--out", str(tmp_path)])
    assert isinstance(again.exception, BadInput)
    assert "give --out alone" in str(again.exception)


def test_under_central_dp_what_the_runs_own_ledgers_let_them_release_is_what_was_paid_for(tmp_path):
    asked_for = settings(privacy=SIZED | {"epsilon": 6.0})
    said = []
    found = tune(asked_for, RATES, runs=3, out=tmp_path / "s", announce=lambda *told: said.append(told))
    ((priced, unit),) = said
    assert (unit, priced.count) == ("client", 3)
    assert 0.9 * 6.0 < priced.epsilon <= 6.0
    assert len(list((tmp_path / "s" / "runs").iterdir())) == 3
    assert "3 runs, all of which are seen" in found["sentence"]
    assert "who took part" in found["sentence"]  # cohorts stay secret
    ((client, epsilon),) = read(tmp_path / "s", SEALS)
    assert (client, epsilon) == ("", pytest.approx(priced.epsilon, rel=1e-3))
    spent = []
    for run in sorted((tmp_path / "s" / "runs").iterdir()):
        ((own, most),) = read(run, "SELECT text, most FROM seals JOIN events ON events.id = seals.event")
        spent.append((price.from_text(own), most))
    together = price.epsilon(tuple(spent), delta=priced.delta)
    assert together <= priced.epsilon * 1.001, "what the runs' own ledgers let them release is what was paid for"


# scored by what clients answer about rows that they hold out

HELD = {"clients": 3, "examples_per_client": 150, "held_out": 0.4}


def held(**changes):
    return local(data=HELD, privacy={"kind": "local", "epsilon": 40.0}, **changes)


def test_a_search_scored_by_a_priced_query_charges_every_answer_of_every_run_before_the_first(tmp_path, monkeypatch):
    def run(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "run", run)
    with pytest.raises(KeyboardInterrupt):
        tune(held(), RATES, runs=3, out=tmp_path)
    rows = read(tmp_path, PAID)
    assert len(rows) == 6  # of each client: the answers, and training
    for client, epsilon in read(tmp_path, SEALS):
        answers, training = (price.from_text(text) for name, text in rows if name == client)
        assert answers.count == 3
        together = price.compose([(training, 1), (answers, 1)])
        assert price.epsilon(together, delta=1e-5) == epsilon <= 40.0
        assert set(price.methods(together, delta=1e-5)) == {"held out", "trained on"}


def test_answers_make_a_search_dearer_and_the_noise_and_the_price_of_an_answer_come_from_one_object(tmp_path):
    priced, _ = price_of(held(), RATES, runs=3)
    made = search.build(priced.runs[0].experiment)
    judged = search.judged_by(made.experiment, made.dataset)
    for index, name in enumerate(made.population.names):
        noise = made.plan.queries.mechanism("evaluation", index, l2_squared=judged.l2_squared, cells=judged.cells)
        assert priced.queries[name]["evaluation"] == SelfComposedDpEvent(noise.event(), 3)
    one = Releases(priced.events["client-0"], 1, tuple(priced.queries["client-0"].items()))
    both = price.epsilon(one.in_runs(1), delta=priced.delta)
    held_out = price.epsilon(price.compose([(priced.queries["client-0"]["evaluation"], 1)]), delta=priced.delta)
    training = price.epsilon(price.compose([(priced.events["client-0"], 1)]), delta=priced.delta)
    assert both == max(held_out, training)  # a record is on one side of the coin
    assert held_out > price.epsilon(price.compose([(noise.event(), 1)]), delta=priced.delta)  # three answers, not one


def test_a_search_is_scored_by_the_noised_answers_and_never_by_exact_or_public_ones(tmp_path, watched):
    found = tune(held(), RATES, runs=4, out=tmp_path / "s")
    told = [history.summary["at_clients"]["metrics"]["accuracy"]["value"] for history in watched]
    assert len(told) == 4
    assert found["at_clients"]["metrics"]["accuracy"]["value"] == max(told)
    for history in watched:
        replies = json.loads((history.out / "queries.json").read_text())["evaluation"]
        assert min(replies["noise_std"].values()) > 0
        exact = {"test_accuracy": 2.0, "at_clients": history.summary["at_clients"]}
        score = search.score_of(tacit.Experiment(**held()), exact)
        assert score == history.summary["at_clients"]["metrics"]["accuracy"]["value"]
    experiment = tacit.Experiment(**held())
    assert search.score_of(experiment, {"test_accuracy": 0.9, "at_clients": {"unknown": "Nobody answered."}}) is None
    assert "4 runs, all of which are seen" in found["sentence"]


def test_a_killed_search_that_clients_score_goes_on_and_asks_and_pays_once(tmp_path, watched):
    watched.stopped(1, held(), runs=2, out=tmp_path / "s")
    before = read(tmp_path / "s", PAID)
    search_on(tmp_path / "s")
    assert read(tmp_path / "s", PAID) == before
    assert len(before) == 6


def test_a_query_per_record_cannot_score_runs_that_promise_per_client(tmp_path):
    with pytest.raises(BadInput, match="priced per record"):
        tune(settings(data={"held_out": 0.3}), RATES, runs=3, out=tmp_path / "s")
    whole = {"kind": "local", "unit": "client", "epsilon": 20.0}
    with pytest.raises(BadInput, match="priced per record"):
        tune(local(data=HELD, privacy=whole), RATES, runs=3, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()
