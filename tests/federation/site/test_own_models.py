"""A site's own models: made in the quiet after a run, judged on rows it holds out, told to nobody; and one that was paid for."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from federation.site.test_own_evaluation import holding_out
from redteam.lying_server import RUN, Server, experiment
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate import idle
from tacit.deploy.operate.idle import Quiet
from tacit.deploy.operate.inspect_site import site_findings
from tacit.deploy.operate.site_process import run_site
from tacit.deploy.server.executor import answer
from tacit.deploy.site import agreement, models, publish
from tacit.deploy.site.at_home import at_home, due, newest, wanted
from tacit.deploy.site.final_model import sent
from tacit.deploy.site.join import join, read_settings
from tacit.deploy.site.limits import Roster
from tacit.deploy.site.make import make_site
from tacit.deploy.site.models import evaluate, taken
from tacit.deploy.site.site import Site
from tacit.errors import BadInput, BudgetExhausted, LedgerError, Refused
from tacit.personal import one
from tacit.privacy.accounting import price
from tacit.privacy.guarantee import shown
from tacit.privacy.ledger.ledger import Charging
from tacit.privacy.local.mechanism import SampledGaussian
from tacit.types import Message
from tacit.wire import pack, unpack

ASKS = 'held_out = 0.3\n[personal]\nkind = "mean-regularised"\nstrength = 0.0001\n'
CSV = {
    "name": "wards",
    "data": {
        "name": "csv",
        "path": "records",
        "partition": "natural",
        "columns": ["a", "b"],
        "numeric": {"a": [-4, 4], "b": [-4, 4]},
        "label": "ill",
        "classes": ["no", "yes"],
        "test_share": 0,
    },
    "task": {"kind": "binary"},
    "train": {"rounds": 3, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": 2.0, "delta": 1e-4, "delta_share": 0.1},
    "run": {"randomness": "os"},
}


def table(file, *, rows=120, seed=0, ill=None):
    """A csv file in which whoever has a large `a` is ill, unless said."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = ["yes" if a > 0 else "no" for a in x[:, 0]] if ill is None else [ill] * rows
    file.write_text("a,b,ill\n" + "".join(f"{a:.4f},{b:.4f},{label}\n" for (a, b), label in zip(x, y, strict=True)))
    return file


def left(folder, *, trained, trial=False, **changed):
    """A site with a csv file of its own to which a run has left a model that knows nothing."""
    chosen = tacit.Experiment(**(CSV | changed))
    make_site(folder, chosen, name="north", epsilon=2.0)
    if trial:
        budget = folder / "budget.toml"
        budget.write_text(budget.read_text().replace("trial = false", "trial = true"))
    table(folder / "records.csv")
    with (folder / "site.toml").open("a") as file:
        file.write(ASKS)
    site = Site(folder)
    size = site.answer({"kind": "hello", "experiment": chosen.toml()}, b"")[0]["examples"]
    roster = Roster(("north", "south"), (size, 40), (2.0, 2.0), chosen.privacy.run_delta)
    joined = join(folder, RUN, chosen.toml(), roster)
    agreement.write(folder, joined.agreement)
    if trained:
        ask = {"kind": "train", "run": RUN, "round": 0, "terms": asdict(joined.agreement.terms)}
        site.answer(ask, sent(joined.parts.params))
    site.answer({"kind": "keep", "run": RUN}, sent(joined.parts.params))
    return folder


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """One that was never asked to train, and one that was."""
    return [left(tmp_path_factory.mktemp("sites") / name, trained=name == "spent") for name in ("fresh", "spent")]


@pytest.fixture
def hospital(tmp_path, sites):
    """A copy of one of them, with other settings or rows where a test wants them."""

    def make(*, asks=ASKS, spent=False, **rows):
        folder = shutil.copytree(sites[spent], tmp_path / "north")
        settings = folder / "site.toml"
        settings.write_text(settings.read_text().replace(ASKS, asks))
        if rows:
            table(folder / "records.csv", **rows)
        return folder

    return make


# what a site has


def test_a_site_ends_with_three_models_and_what_its_held_out_rows_say_of_them(hospital):
    folder = hospital()
    told = models.adapt(folder, RUN)
    run, home = folder / "runs" / RUN, at_home(folder, RUN)
    assert told == json.loads((run / "comparison.json").read_text())
    assert (told["rows"], told["trained_on"]) == (len(home.held.y), len(home.dataset.y))
    assert told["rows"] + told["trained_on"] == 120
    assert told["metrics"]["auroc"]["own"]["value"] > 0.9 > told["metrics"]["auroc"]["common"]["value"]
    gap = told["metrics"]["auroc"]["own_less_common"]
    assert gap["interval"][0] <= gap["value"] <= gap["interval"][1]
    assert told["better"] == "own"
    assert "no epsilon covers any of it" in told["note"]
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (run, *run.rglob("*"))}
    assert modes == {True: 0o700, False: 0o600}
    assert sorted(path.name for path in run.glob("model-*")) == ["model-alone", "model-common", "model-own"]
    assert "neither sent nor" in (run / "model-own" / "NOT-FOR-OTHERS.txt").read_text()
    assert due(folder) == []


def test_a_site_makes_what_a_client_of_a_simulation_would_make_of_the_same_rows(hospital):
    folder = hospital()
    models.adapt(folder, RUN)
    home = at_home(folder, RUN)
    rows = {"x": home.dataset.x, "y": home.dataset.y, "by": wanted(home.settings), "name": "north", "seed": 0}
    made = one.make(home, home.vector(), **rows)
    assert made.own.judged(lambda vector: float(torch.equal(vector, home.vector("own")))) == 1
    right = (tacit.load(folder / "runs" / RUN / "model-own").model(home.held.x)[:, 0] > 0) == (home.held.y > 0)
    assert float(right.float().mean()) > 0.85


def test_a_model_that_came_again_makes_own_models_due_again(hospital):
    folder = hospital()
    models.adapt(folder, RUN)
    home = at_home(folder, RUN)
    Site(folder).answer({"kind": "keep", "run": RUN}, sent(home.params + 1))
    assert due(folder) == [RUN]
    with pytest.raises(BadInput, match="has no own model of run"):
        taken(folder, "own")


# what a server sees of it


def test_with_and_without_own_models_every_answer_is_the_same_to_the_bit(tmp_path):
    def said(name, personal=""):
        server = holding_out(tmp_path / name, f"0.3{personal}", run={"randomness": "seeded"})
        answers = [server.hello(), server.agree(), *(server.train(round) for round in range(3))]
        return [*answers, server.ask(sent(server.parts.params), kind="keep", run=RUN)]

    plain = said("plain")
    assert said("own", '\n[personal]\nkind = "finetune"') == plain
    assert said("wrong", '\n[personal]\nkind = "nonsense"') == plain
    assert due(tmp_path / "own") == [RUN]


def test_adapting_opens_no_ledger_and_waits_for_no_answer(hospital, monkeypatch):
    folder = hospital()
    monkeypatch.setattr("tacit.privacy.ledger.ledger.Ledger.__init__", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("tacit.deploy.site.replies.alone", lambda *_: 1 / 0)
    before = (folder / "ledger.db").read_bytes()
    assert models.adapt(folder, RUN)["better"] == "own"
    assert (folder / "ledger.db").read_bytes() == before


def test_whatever_goes_wrong_in_it_is_a_line_in_the_log_without_anything_of_the_rows(hospital, monkeypatch):
    folder = hospital()
    monkeypatch.setattr(models.one, "make", lambda *_, **__: float("secret cell"))
    models.adapt_due(folder)
    last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    assert last["verdict"] == "failed"
    assert last["text"].startswith("Own models: ValueError")
    assert "secret" not in last["text"]


def test_what_is_being_made_has_ended_before_a_question_is_looked_at(hospital, monkeypatch):
    folder = hospital()
    monkeypatch.setattr(idle, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(idle, "COMMAND", "import time; time.sleep(600)")
    with Quiet(folder) as waiting:
        waiting.look()
        child = waiting._child.pid
        os.kill(child, 0)  # it runs

        def reply():
            with pytest.raises(ProcessLookupError):
                os.kill(child, 0)
            return "answered"

        assert waiting.broken(reply) == "answered"
        waiting.look()
        again = waiting._child.pid
    with pytest.raises(ProcessLookupError):
        os.kill(again, 0)


def test_nothing_is_started_before_it_is_quiet_or_where_no_own_models_are_wanted(hospital, monkeypatch):
    folder = hospital()
    with Quiet(folder) as waiting:
        waiting.look()
        assert waiting._child is None
        monkeypatch.setattr(idle, "QUIET_SECONDS", 0.0)
        text = (folder / "site.toml").read_text()
        (folder / "site.toml").write_text(text.split("[personal]")[0])
        waiting.look()
        assert waiting._child is None


def test_a_process_of_its_own_makes_them_in_the_quiet(hospital, monkeypatch):
    folder, ends = hospital(), time.monotonic() + 120
    monkeypatch.setattr(idle, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr("tacit.deploy.server.executor.LOOK_SECONDS", (0.05, 0.05))
    there = folder / "runs" / RUN / "comparison.json"

    class Line:
        node = look = beat = staticmethod(lambda: None)

    with Quiet(folder) as waiting:
        answer(
            Line(),
            lambda message: message,
            stopped=lambda: there.exists() or time.monotonic() > ends,
            idle=waiting.look,
        )
    assert json.loads(there.read_text())["better"] == "own"


def test_no_message_that_a_site_could_pack_holds_an_own_model(hospital):
    home = at_home(hospital(), RUN)
    rows = {"x": home.dataset.x, "y": home.dataset.y, "by": wanted(home.settings), "name": "north", "seed": 0}
    made = one.make(home, home.vector(), **rows)
    for model in (made.own, made.alone):
        with pytest.raises(Refused, match="neither sent nor published"):
            pack(Message("north", {"update": model}))


# bad input


@pytest.mark.parametrize(
    ("asks", "sentence"),
    [
        ('[personal]\nkind = "finetune"\n', r"holds out no rows to judge them by: add held_out = 0\.2"),
        ('held_out = 0.3\n[personal]\nkind = "ridge"\n', r"expected kind to be one of"),
        ('held_out = 0.3\n[personal]\nkind = "mean-regularised"\nstrength = -1\n', r"personal\.strength >= 0"),
        ('held_out = 0.3\n[personal]\nkind = "finetune"\nlambda = 1\n', r"unknown key 'lambda'"),
        ("held_out = 0.3\n[personal]\nstrength = 1\n", r"to name a kind"),
        ('held_out = 0.3\npersonal = "finetune"\n', r"to name a kind"),
    ],
)
def test_what_cannot_be_is_said_before_a_site_joins(hospital, asks, sentence):
    folder = hospital(asks=asks)
    with pytest.raises(BadInput, match=sentence):
        run_site(folder)
    assert any(
        finding.wrong and re.search(sentence, finding.text) for finding in site_findings(folder, experiment=None)
    )
    done = CliRunner().invoke(app, ["deploy", "site", str(folder), "--adapt"])
    assert isinstance(done.exception, BadInput)


def test_a_site_whose_coins_hold_out_no_row_is_told_to_raise_its_share(hospital):
    folder = hospital(asks=ASKS.replace("0.3", "0.00001"), rows=20)
    with pytest.raises(
        BadInput, match=r"held_out = 1e-05 leaves this site no row to judge its own models by: raise it"
    ):
        models.adapt(folder, RUN)


def test_rows_of_one_class_are_said_and_the_loss_decides(hospital):
    told = models.adapt(hospital(ill="no"), RUN)
    assert told["metrics"]["auroc"] == {"rows": 0, "clients": 0}
    assert told["better"] == "own"  # of the mean loss, which one class tells too
    words = dict(models.in_words(told))
    assert words["AUROC at home"].startswith("not known: the")
    assert "of one class" in words["note"]


def test_shrinkage_is_refused_at_home_where_there_is_no_likelihood(hospital, monkeypatch):
    folder = hospital(asks='held_out = 0.3\n[personal]\nkind = "shrinkage"\n')
    monkeypatch.setitem(one.LIKELY, "binary", "another")
    monkeypatch.setattr("tacit.deploy.site.models.one.LIKELY", {})
    with pytest.raises(BadInput, match="derives its strength from a likelihood"):
        models.adapt(folder, RUN)


# which model is used


def test_predict_takes_the_better_by_held_out_rows_unless_told_otherwise(hospital, tmp_path):
    folder, new, run = hospital(), table(tmp_path / "new.csv", rows=50, seed=7), CliRunner()

    def predicted(*more, place=folder):
        done = run.invoke(app, ["predict", str(place), str(new), *more])
        return done.exception or done.stderr

    assert "With the site's common model" in predicted()
    assert "nothing was compared yet" in predicted()
    models.adapt(folder, RUN)
    said = predicted()
    assert re.search(r"With the site's own model of run 0{32} \(the better on \d+ held-out rows\)", said)
    assert "neither sent nor" in said
    assert "common model" in predicted("--model", "common")
    assert "own model" in predicted(place=folder / "runs" / RUN)
    assert "neither sent nor" in predicted(place=folder / "runs" / RUN / "model-own")
    assert "Expected --model to be one of" in str(predicted("--model", "best"))
    assert "--model is for a site's folder" in str(
        predicted("--model", "own", place=folder / "runs" / RUN / "model-common")
    )
    file = folder / "runs" / RUN / "comparison.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"better": "common"}))
    assert "common model" in predicted()
    file.write_text("{")
    assert "is damaged" in str(predicted())


def test_better_is_by_the_headline_metric_whichever_way_it_points():
    def of(own, common, metric="rmse"):
        return {"metric": metric, "metrics": {metric: {"own": {"value": own}, "common": {"value": common}}}} | {
            "losses": {"own": 0.1, "common": 0.2}
        }

    assert models.better(of(1.0, 2.0), higher=False) == "own"
    assert models.better(of(1.0, 2.0), higher=True) == "common"
    assert models.better(of(1.0, 1.0), higher=True) == "own"  # equal: the loss decides


def test_new_rows_repeat_the_comparison_and_decide_nothing(hospital, tmp_path):
    folder, new = hospital(), table(tmp_path / "new.csv", rows=60, seed=7)
    with pytest.raises(BadInput, match="has no own models of run"):
        evaluate(folder, new)
    models.adapt(folder, RUN)
    before = (folder / "runs" / RUN / "comparison.json").read_bytes()
    told = evaluate(folder, new)
    assert (told["rows"], told["seen"]) == (60, 0)
    assert told["metrics"]["auroc"]["own"]["value"] > told["metrics"]["auroc"]["common"]["value"]
    assert evaluate(folder, folder / "records.csv")["seen"] == len(at_home(folder, RUN).dataset.y)
    assert (folder / "runs" / RUN / "comparison.json").read_bytes() == before
    assert len((folder / "runs" / RUN / "evaluated.jsonl").read_text().splitlines()) == 2
    done = CliRunner().invoke(app, ["deploy", "site", str(folder), "--evaluate", str(folder / "records.csv")])
    assert "among those that the site trains on" in " ".join(done.stdout.split())
    with pytest.raises(BadInput, match="is not a file"):
        evaluate(folder, tmp_path / "none.csv")
    with pytest.raises(BadInput, match="Say one of --adapt"):
        raise CliRunner().invoke(app, ["deploy", "site", str(folder), "--adapt", "--publish-personal"]).exception
    with pytest.raises(BadInput, match="holds no model that run"):
        newest(folder, "f" * 32)


# one that may leave


def seals(folder):
    with sqlite3.connect(folder / "ledger.db") as book:
        query = (
            "SELECT run, epsilon, delta, most, text FROM seals JOIN events ON events.id = seals.event ORDER BY rowid"
        )
        return book.execute(query.replace("ORDER BY rowid", "")).fetchall()


def test_a_published_model_is_charged_before_a_step_is_taken_with_the_noise_that_is_drawn(hospital, monkeypatch):
    folder, drawn, whole = hospital(), [], SampledGaussian.noise

    def watched(self, state, stream, bounded):
        drawn.append((len(seals(folder)), price.to_text(self.event()), self.noise_std))
        assert not (folder / "runs" / RUN / "model-published").exists()
        return whole(self, state, stream, bounded)

    monkeypatch.setattr(SampledGaussian, "noise", watched)
    made = publish.publish(folder, epsilon=1.0)
    ((run, epsilon, delta, most, event),) = seals(folder)
    assert run != RUN
    assert (most, delta) == (1, pytest.approx(1e-5))
    assert 0.9 < epsilon <= 1.0
    assert len(drawn) == 6, "as many steps as the run had"
    assert {(charged, text) for charged, text, _ in drawn} == {(1, event)}
    noise = json.loads(event)
    assert drawn[0][2] == pytest.approx(SampledGaussian.noise_std.fget(_mechanism(noise)))
    predictor, home = tacit.load(made.folder), at_home(folder, RUN)
    moved = torch.cat([parameter.detach().reshape(-1) for parameter in predictor.parameters()]) - home.vector()
    assert float(moved.norm()) > 0
    assert "the epsilon of the whole run is at most 1" in (made.folder / "promise.txt").read_text()
    assert str(folder) not in (made.folder / "experiment.toml").read_text()
    with pytest.raises(BadInput, match="another one is another release"):
        publish.publish(folder, epsilon=0.1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"privacy": {"kind": "none"}}, "promised no privacy"),
        ({"run": {"randomness": "seeded"}}, "drew its noise from a seed that others know"),
    ],
)
def test_a_published_model_that_begins_with_one_that_no_epsilon_covers_is_refused_and_costs_nothing(
    tmp_path, changed, why
):
    """Its fresh noise hides a few more steps; the rows in the model that it begins with were printed under the same epsilon."""
    folder = left(tmp_path / "north", trained=True, trial=True, **changed)
    before = (folder / "ledger.db").read_bytes()
    with pytest.raises(Refused, match=why):
        publish.publish(folder, epsilon=0.1)
    assert not (folder / "runs" / RUN / "model-published").exists()
    assert (folder / "ledger.db").read_bytes() == before


def test_of_two_copies_of_a_site_that_lie_side_by_side_one_alone_publishes(hospital):
    folder = hospital()
    (folder / "node.pub").write_text("ssh-ed25519 the-key-of-north\n")
    twin = shutil.copytree(folder, folder.parent / "twin")
    publish.publish(folder, epsilon=0.5)
    with pytest.raises(LedgerError, match="one budget twice"):
        publish.publish(twin, epsilon=0.5)
    assert not (twin / "runs" / RUN / "model-published").exists()


def test_of_two_copies_that_publish_in_the_same_second_at_most_one_publishes(hospital, monkeypatch):
    folder = hospital()
    (folder / "node.pub").write_text("ssh-ed25519 the-key-of-north\n")
    both, write = threading.Barrier(2, timeout=60), Charging._write

    def waiting(self, paying):
        both.wait()  # each has passed whatever is looked at before a charge
        return write(self, paying)

    monkeypatch.setattr(Charging, "_write", waiting)
    made, refused = [], []

    def one(site):
        try:
            made.append(publish.publish(site, epsilon=0.5))
        except LedgerError as error:
            refused.append(str(error))

    sites = [folder, Path(shutil.copytree(folder, folder.parent / "twin"))]
    threads = [threading.Thread(target=one, args=(site,)) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) + len(refused) == 2
    assert len(made) <= 1
    assert "one budget twice" in refused[0]
    assert len(list(folder.parent.glob("*/runs/*/model-published"))) == len(made)


def test_what_is_promised_of_a_published_model_counts_the_run_that_it_begins_with(hospital):
    """With few and small steps it is nearly the run's model: whoever sees it alone sees that one, at more than its own epsilon."""
    folder = hospital(spent=True)
    budget = folder / "budget.toml"
    budget.write_text(budget.read_text().replace("epsilon = 2.0", "epsilon = 3.0"))
    run = sum(row[1] for row in seals(folder))
    made = publish.publish(folder, epsilon=0.1)
    for text in (made.promise, (made.folder / "promise.txt").read_text()):
        own, _, both = text.partition(" It begins with that model and tells what that tells: ")
        assert "that the model that the run left is known already" in own
        assert "for whoever sees it, alone or beside the run's" in both
        assert f"comes to epsilon {shown(run + 0.1)} at delta = 2e-05" in both


def _mechanism(event):
    """The mechanism that a price names."""
    found = re.search(r'"noise_multiplier": ([0-9.e+-]+)', json.dumps(event))
    return SampledGaussian(noise_multiplier=float(found[1]), clip=1.0, sampling_rate=0.5)


def test_it_takes_what_is_left_and_is_refused_in_one_sentence_where_that_does_not_pay(hospital):
    folder = hospital(spent=True)
    sealed = sum(row[1] for row in seals(folder))
    assert 0 < sealed <= 2.0
    with pytest.raises(BudgetExhausted, match=r"its runs have sealed epsilon .*: that does not pay for epsilon 2\.5"):
        publish.publish(folder, epsilon=2.5)
    budget = folder / "budget.toml"
    text = budget.read_text()
    budget.write_text(text.replace("epsilon = 2.0", f"epsilon = {sealed!r}"))
    with pytest.raises(BudgetExhausted, match="leaves nothing for a published model"):
        publish.publish(folder)
    budget.write_text(text.replace("delta = 0.0001", "delta = 1e-05"))
    with pytest.raises(BudgetExhausted, match="have sealed all of delta: a published model needs a share of its own"):
        publish.publish(folder)
    assert not (folder / "runs" / RUN / "model-published").exists()
    budget.write_text(text.replace("epsilon = 2.0", "epsilon = 3.0"))
    made = publish.publish(folder)
    assert made.epsilon == pytest.approx(3.0 - sealed)
    assert sum(row[1] for row in seals(folder)) <= 3.0
    Site(folder)  # and the site's own ledger stands: its answers are known to it
    join(folder, RUN, *_agreed(folder))


def _agreed(folder):
    known = agreement.read(folder, RUN)
    return known.experiment, Roster.of(known.roster)


def test_a_budget_per_client_does_not_pay_for_a_model_that_is_noised_per_record(tmp_path):
    central = {"kind": "central", "epsilon": 8.0}
    server = Server(tmp_path / "site", experiment(privacy=central, train={"sampling_rate": None}))
    server.terms["epsilon"] = 8.0
    budget = tmp_path / "site" / "budget.toml"
    budget.write_text(budget.read_text().replace("epsilon = 1.0", "epsilon = 8.0"))
    server.agree(releases=3)
    server.ask(sent(server.parts.params), kind="keep", run=RUN)
    with pytest.raises(Refused, match=r"noised per record, and this site's budget\.toml is per client"):
        publish.publish(tmp_path / "site", epsilon=1.0)


def test_a_crash_after_the_charge_leaves_no_model_and_the_charge_stands(hospital, monkeypatch):
    folder = hospital()
    monkeypatch.setattr(publish, "_trained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        publish.publish(folder, epsilon=0.5)
    assert len(seals(folder)) == 1
    assert not (folder / "runs" / RUN / "model-published").exists()


def test_settings_of_a_site_are_read_with_its_own_models(hospital):
    assert wanted(read_settings(hospital())).strength == 0.0001
    assert wanted({"name": "north"}).kind is None
    assert unpack(sent(torch.zeros(2))).tensors["params"].shape == (2,)


def test_whatever_a_process_of_the_quiet_has_begun_ends_with_it(tmp_path):
    """A model's code may start processes of its own; they went on beside the answer."""
    waiting = Quiet(tmp_path)
    text = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60'], stdout=2).pid, flush=True); time.sleep(60)"
    waiting._child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True)
    with waiting._child.stdout as told:
        begun = int(told.readline())
    waiting.broken(lambda: None)
    for _ in range(100):
        status = Path(f"/proc/{begun}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        os.kill(begun, signal.SIGKILL)
        pytest.fail("it goes on")


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_an_epsilon_that_is_none_is_said_before_anything_about_delta(hospital, epsilon):
    folder = hospital(spent=True)
    budget = folder / "budget.toml"
    budget.write_text(budget.read_text().replace("delta = 0.0001", "delta = 1e-05"))  # of which nothing is left
    with pytest.raises(BadInput, match="Expected --epsilon above 0"):
        publish.publish(folder, epsilon=epsilon)
