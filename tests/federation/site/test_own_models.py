"""A site's own models: made in the quiet after a run, judged on rows it holds out, told to nobody."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from federation.site.test_own_evaluation import holding_out
from redteam.lying_server import RUN
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate import site_process
from tacit.deploy.operate.inspect import site_findings
from tacit.deploy.operate.site_process import OwnModels, run_site
from tacit.deploy.server.node import answer
from tacit.deploy.site import agreement, models
from tacit.deploy.site.agreement import accept
from tacit.deploy.site.layout import due, newest, wanted
from tacit.deploy.site.limits import allow, make_site, read_limits
from tacit.deploy.site.models import at_home, evaluate, taken
from tacit.deploy.site.requests import Roster, sent
from tacit.deploy.site.site import Site
from tacit.errors import BadInput, Refused
from tacit.personal import one
from tacit.personal.verdict import verdict
from tacit.types import Message
from tacit.wire import pack

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
    joined = accept(allow(folder, chosen.toml(), read_limits(folder)), RUN, roster)
    agreement.write(folder, joined.agreement, "promised")
    if trained:
        ask = {"kind": "train", "run": RUN, "round": 0}
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
    assert told["use"] in ("own", "alone")
    assert told["because"].startswith("The model trained alone is better than the")
    assert "no epsilon covers any of it" in told["note"]
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (run, *run.rglob("*"))}
    assert modes == {True: 0o700, False: 0o600}
    assert sorted(path.name for path in run.glob("model-*")) == ["model-alone", "model-common", "model-own"]
    assert "neither sent nor" in (run / "model-own" / "NOT-FOR-OTHERS.txt").read_text()
    assert due(folder) == []
    Site(folder).answer({"kind": "keep", "run": RUN}, sent(home.params + 1))
    assert due(folder) == [RUN], "a model that came again makes own models due again"
    with pytest.raises(BadInput, match="has no own model of run"):
        taken(folder, "own")


def test_a_site_makes_what_a_client_of_a_simulation_would_make_of_the_same_rows(hospital):
    folder = hospital()
    models.adapt(folder, RUN)
    home = at_home(folder, RUN)
    rows = {"x": home.dataset.x, "y": home.dataset.y, "by": wanted(home.settings), "name": "north", "seed": 0}
    made = one.make(home, home.vector(), **rows)
    assert made.own.judged(lambda vector: float(torch.equal(vector, home.vector("own")))) == 1
    right = (tacit.load(folder / "runs" / RUN / "model-own").model(home.held.x)[:, 0] > 0) == (home.held.y > 0)
    assert float(right.float().mean()) > 0.85


# what a server sees of it


def test_with_and_without_own_models_every_answer_is_the_same_to_the_bit(tmp_path):
    def said(name, personal=""):
        server = holding_out(tmp_path / name, f"0.3{personal}", run={"randomness": "seeded"})
        answers = [server.hello(), server.agree(), *(server.train(round) for round in range(3))]
        return [*answers, server.ask(sent(server.parts.params), kind="keep", run=RUN)]

    plain = said("plain")
    assert said("own", '\n[personal]\nkind = "mean-regularised"') == plain
    assert said("wrong", '\n[personal]\nkind = "nonsense"') == plain
    assert due(tmp_path / "own") == [RUN]


def test_adapting_opens_no_ledger_and_waits_for_no_answer(hospital, monkeypatch):
    folder = hospital()
    monkeypatch.setattr("tacit.privacy.ledger.ledger.Ledger.__init__", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("tacit.deploy.site.layout.alone", lambda *_: 1 / 0)
    before = (folder / "ledger.db").read_bytes()
    assert models.adapt(folder, RUN)["use"] == "alone"
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
    monkeypatch.setattr(site_process, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(site_process, "COMMAND", "import time; time.sleep(600)")
    with OwnModels(folder) as waiting:
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
    with OwnModels(folder) as waiting:
        waiting.look()
        assert waiting._child is None
        monkeypatch.setattr(site_process, "QUIET_SECONDS", 0.0)
        text = (folder / "site.toml").read_text()
        (folder / "site.toml").write_text(text.split("[personal]")[0])
        waiting.look()
        assert waiting._child is None


def test_a_process_of_its_own_makes_them_in_the_quiet(hospital, monkeypatch):
    folder, ends = hospital(), time.monotonic() + 120
    monkeypatch.setattr(site_process, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr("tacit.deploy.server.node.LOOK_SECONDS", (0.05, 0.05))
    there = folder / "runs" / RUN / "comparison.json"

    class Line:
        node = look = beat = staticmethod(lambda: None)

    with OwnModels(folder) as waiting:
        answer(
            Line(),
            lambda message: message,
            stopped=lambda: there.exists() or time.monotonic() > ends,
            idle=waiting.look,
        )
    assert json.loads(there.read_text())["use"] == "alone"


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
        ('[personal]\nkind = "mean-regularised"\n', r"holds out no rows to judge them by: add held_out = 0\.2"),
        ('held_out = 0.3\n[personal]\nkind = "ridge"\n', r"expected kind to be one of"),
        (
            'held_out = 0.3\n[personal]\nkind = "mean-regularised"\nstrength = -1\n',
            r"strength to be a number of at least 0",
        ),
        ('held_out = 0.3\n[personal]\nkind = "mean-regularised"\nlambda = 1\n', r"unknown key 'lambda'"),
        ("held_out = 0.3\n[personal]\nstrength = 1\n", r"to name a kind"),
        ('held_out = 0.3\npersonal = "mean-regularised"\n', r"to name a kind"),
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
    assert "by their mean loss, use the" in told["because"]
    words = dict(models.in_words(told))
    assert words["AUROC on the client"].startswith("not known: the")
    assert "of one class" in words["note"]


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
    assert re.search(
        r"With the site's alone model of run 0{32} \(see below\). The model trained alone is better than", said
    )
    assert "neither sent nor" in said
    assert "common model" in predicted("--model", "common")
    assert "alone model" in predicted(place=folder / "runs" / RUN)
    assert "own model" in predicted("--model", "own")
    assert "neither sent nor" in predicted(place=folder / "runs" / RUN / "model-own")
    assert "Expected --model to be one of" in str(predicted("--model", "best"))
    assert "--model is for a site's folder" in str(
        predicted("--model", "own", place=folder / "runs" / RUN / "model-common")
    )
    file = folder / "runs" / RUN / "comparison.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use": "common"}))
    assert "common model" in predicted()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use": "../../../other"}))
    assert "Expected use to be one of common, own, alone" in str(predicted())
    file.write_text("{")
    assert "is damaged" in str(predicted())


def compared(alone, common, own, *, half=0.01):
    values = {"alone": alone, "common": common, "own": own}
    by = {name: {"value": value} for name, value in values.items()}
    for first, other in one.PAIRS:
        gap = values[first] - values[other]
        by[f"{first}_less_{other}"] = {"value": gap, "interval": [gap - half, gap + half]}
    return by


def test_the_model_to_use_is_the_best_of_three_by_as_much_as_the_rows_can_tell():
    def use(*values, higher=True, half=0.01):
        return verdict(compared(*values, half=half), {}, key="auroc", higher=higher, rows=50)

    assert use(0.94, 0.90, 0.91) == (
        "alone",
        "The model trained alone is better than the personalised model by 0.030 AUROC (0.020 to 0.040) on 50 held-out rows: use"
        " the model that stayed at home.",
    )
    assert use(0.94, 0.90, 0.91, higher=False)[0] == "common"
    assert use(0.94, 0.90, 0.91, half=0.1)[0] == "own", "within a standard error nothing is told"
    assert "cannot tell the personalised model from the model trained alone" in use(0.94, 0.90, 0.91, half=0.1)[1]
    assert use(0.90, 0.94, 0.94)[0] == "common", (
        "what is as good as the personalised model and has an epsilon is preferred"
    )
    assert use(0.94, 0.90, 0.94)[0] == "alone"
    assert "better than the global model" in use(0.94, 0.90, 0.94)[1], (
        "a personalised model that is the one alone is no rival"
    )
    assert use(0.9, 0.9, 0.9)[0] == "alone"


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
        raise CliRunner().invoke(app, ["deploy", "site", str(folder), "--run", "f" * 32]).exception
    with pytest.raises(BadInput, match="holds no model that run"):
        newest(folder, "f" * 32)


def seals(folder):
    with sqlite3.connect(folder / "ledger.db") as book:
        query = "SELECT run, epsilon, delta, most, text FROM seals JOIN events ON events.id = seals.event"
        return book.execute(query).fetchall()


def test_whatever_a_process_of_the_quiet_has_begun_ends_with_it(tmp_path):
    """A model's code may start processes of its own; they went on beside the answer."""
    waiting = OwnModels(tmp_path)
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


def test_the_process_that_answers_has_no_code_for_own_models(tmp_path):
    script = """
import sys
from pathlib import Path
from tacit.cli.deploy import site_command
from tacit.errors import BadInput
try:
    site_command(Path(sys.argv[1]))
except BadInput:
    pass
import tacit.deploy.site.site
print([name for name in sys.modules if name.startswith("tacit.personal")])
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
