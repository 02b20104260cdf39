"""The hospitals of docs/how-to-deploy.md: rows of their own in csv files, one epsilon each."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from trained import same_model
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate import inspect as check
from tacit.deploy.operate.layout import open_federation
from tacit.deploy.operate.processes import free_port
from tacit.deploy.operate.remaining import short_sites
from tacit.deploy.operate.serve import closing, finished
from tacit.deploy.server.client import LocalGrid, client_app
from tacit.deploy.server.server import Call, ending, in_flowers_words, observer, serve
from tacit.deploy.site.layout import read_settings
from tacit.engine.assemble import build
from tacit.engine.queries import read_stats
from tacit.engine.run_files import read
from tacit.errors import BadInput, BudgetExhausted, RunExists, TacitError
from tacit.experiment import Experiment
from tacit.privacy.ledger.reader import find
from tacit.report.collect import run_page

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("north", "coast", "valley")
HIDDEN = "a value that is not repeated here"
COLUMNS = "radius,texture,smoothness,concave_points,diagnosis"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What the example's program writes. Do not change it."""
    place = tmp_path_factory.mktemp("hospitals")
    program = [sys.executable, ROOT / "examples/hospitals/make_records.py"]
    subprocess.run(program, cwd=place, check=True, capture_output=True)
    return place


@pytest.fixture
def hospitals(written, tmp_path, monkeypatch):
    """The example's files in an empty folder, which is the working directory."""
    monkeypatch.chdir(shutil.copytree(written, tmp_path, dirs_exist_ok=True))
    (tmp_path / "hospitals.toml").write_text((ROOT / "examples/hospitals/hospitals.toml").read_text())
    return tmp_path


def make(*settings, trial=False, rows=True):
    words = ["deploy", "init", "federation", "--sites", ",".join(NAMES), "--experiment", "hospitals.toml"]
    words += [part for setting in settings for part in ("--set", setting)] + ["--trial"] * trial
    done = CliRunner().invoke(app, [*words, "--address", f"127.0.0.1:{free_port()}"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    federation = open_federation(Path("federation"))
    for name in NAMES if rows else ():
        (federation.site(name) / "records.csv").write_bytes(Path(f"records/{name}.csv").read_bytes())
    return federation


@pytest.fixture(scope="module")
def ran_once(written, tmp_path_factory):
    """A federation whose one round is over. Do not change it."""
    place = shutil.copytree(written, tmp_path_factory.mktemp("ran"), dirs_exist_ok=True)
    (place / "hospitals.toml").write_text((ROOT / "examples/hospitals/hospitals.toml").read_text())
    with pytest.MonkeyPatch.context() as there:
        there.chdir(place)
        federation = make("train.rounds=1")
        return place, deployed(federation)


@pytest.fixture
def ran(ran_once, tmp_path, monkeypatch):
    """A copy of it, in the working directory."""
    place, _ = ran_once
    monkeypatch.chdir(shutil.copytree(place, tmp_path, dirs_exist_ok=True))
    return open_federation(Path("federation"))


def deployed(federation, **call):
    experiment = Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    grid = LocalGrid(client_app(), [federation.site(name) for name in NAMES])
    options = {"sites": NAMES, "join_seconds": 20, "round_seconds": 20} | call
    return serve(grid, experiment, Call(out=federation.results, **options))


def wrong(folder):
    return [finding.text for finding in check.findings(folder) if finding.wrong]


def said(federation, name="coast"):
    lines = (federation.site(name) / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def test_hospitals_train_under_the_simulators_guarantee_and_spend_their_own_epsilons(hospitals, monkeypatch):
    federation = make("train.rounds=3", trial=True)
    simulated = tacit.run(Experiment.load("hospitals.toml", ("train.rounds=3",)), out="simulated", page=False)
    monkeypatch.chdir("/")  # the server and the sites have other working directories than whoever ran init
    history = deployed(federation)
    assert history.summary["test_accuracy"] > 0.6
    assert history.summary["guarantee"] == simulated.summary["guarantee"]
    spent = history.summary["sites"]["epsilon"]
    assert 0.9 < spent["north"] <= 1.0 < 2.7 < spent["coast"] <= 3.0 < 7.2 < spent["valley"] <= 8.0
    for place in (hospitals / "simulated", history.out):
        assert 'rule = "random-effects"' in (place / "experiment.toml").read_text()
    assert sorted(history.summary["sites"]["have_the_model"]) == sorted(NAMES)
    for name in NAMES:
        (kept,) = (federation.site(name) / "runs").glob("*/model-common")
        assert same_model(kept, history.out)
        assert tacit.load(kept).encoder == tacit.load(history.out).encoder
    words = ["predict", history.out, hospitals / "public-test.csv", "--out", hospitals / "predictions.csv"]
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert f"Accuracy {history.summary['test_accuracy']:.4f} on the 149 that have a label" in done.stderr
    assert len((hospitals / "predictions.csv").read_text().splitlines()) == 1 + 149


def test_hospitals_hold_rows_out_and_say_with_noise_how_the_model_does_on_them(hospitals):
    held = ("train.rounds=3", "data.held_out=0.3", "metric.choose=auroc", "task.kind=binary")
    federation = make(*held, trial=True)
    told = deployed(federation).summary["at_clients"]
    simulated = build(Experiment.load("hospitals.toml", held)).population
    roster = json.loads((federation.results / "sites.json").read_text())
    assert dict(zip(simulated.names, simulated.sizes.tolist(), strict=True)) == dict(
        zip(roster["names"], roster["sizes"], strict=True)
    ), "a record is on the side that it is on in a simulation"
    assert told["rows"] == pytest.approx(len(simulated.held.y), abs=150)
    value = told["metrics"]["auroc"]["value"]  # None where the noise of so few rows says nothing
    assert value is None or 0 <= value <= 1
    for name in NAMES:
        assert (
            "answers once, for ever, with counts for results"
            in next(federation.site(name).glob("runs/*/promise.txt")).read_text()
        )


def test_hospitals_without_any_public_row_train_and_know_what_they_say_themselves(hospitals):
    columns = 'columns = ["radius", "texture", "smoothness", "concave_points"]'
    changed = ('test_path = "public-test.csv"', f"test_share = 0\nheld_out = 0.3\n{columns}")
    Path("hospitals.toml").write_text(Path("hospitals.toml").read_text().replace(*changed))
    os.remove("public-test.csv")
    asked = ('privacy.stats=["radius", "diagnosis"]', "privacy.query_shares={stats = 0.5}", "privacy.epsilon=8.0")
    federation = make("train.rounds=3", *asked)
    history = deployed(federation)
    for record in history.rounds:
        observer(Experiment.load("hospitals.toml"))(record)  # as `up` and the server say it
    assert history.summary["test_accuracy"] is None
    assert history.summary["at_clients"]["answered"] == 3
    assert 0 <= history.summary["at_clients"]["metrics"]["accuracy"]["value"] <= 1
    assert any("there are no public test rows" in note for note in history.summary["notes"])
    shown = CliRunner().invoke(app, ["stats", "federation"], catch_exceptions=False).output
    assert "3 of 3 clients answered." in shown
    assert "malignant" in shown
    (radius,) = (one for one in read_stats(Path("federation"))["columns"] if one["column"] == "radius")
    assert radius["mean"]["value"] == pytest.approx(14, abs=5)
    ending(history)
    assert "not known: there are no public test rows" in json.dumps(run_page(read(history.out)))
    row = {"radius": [14.0], "texture": [20.0], "smoothness": [0.1], "concave_points": [0.05]}
    predicted = tacit.load(history.out).predict(row)
    assert predicted.labels[0] in ("benign", "malignant")


FILE = 'test_path = "public-test.csv"'


@pytest.mark.parametrize(
    ("settings", "changed", "message"),
    [
        ((), "held_out = 0.3", "or, where nobody has public rows"),
        ((), "test_share = 0", "list them in data.columns"),
        ((), f"{FILE}\nheld_out = 1.5", "held_out"),
        ((), 'test_path = "missing.csv"', "missing.csv does not exist"),
        (("data.held_out=0.3", "metric.choose=brier"), FILE, "cannot be asked for brier"),
        (('data.classes="from-data"',), FILE, "declare them"),
        (('data.columns=["radius"]',), FILE, "leaves out 'texture'"),
    ],
)
def test_what_sites_cannot_be_asked_or_would_read_differently_is_refused_before_anything_is_made(
    hospitals, settings, changed, message
):
    Path("hospitals.toml").write_text(Path("hospitals.toml").read_text().replace(FILE, changed))
    with pytest.raises(BadInput, match=message):
        make(*settings)
    assert not Path("federation").exists()


def test_columns_in_another_order_are_the_same_rows(hospitals):
    federation = make("train.rounds=2", trial=True)
    first = deployed(federation)
    path = federation.site("coast") / "records.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join(reversed(row)) for row in rows) + "\n")
    for name in NAMES:  # as if nothing had been released
        for file in ("ledger.db", "ledger.mark"):
            (federation.site(name) / file).unlink()
        shutil.rmtree(federation.site(name) / "runs")
    assert same_model(deployed(federation, force=True).out, first.out.with_name("results.1"))


def test_a_sites_folder_can_move_and_its_ledger_goes_on(ran):
    ran.folder.rename("moved")
    moved = open_federation(Path("moved"))
    with pytest.raises(TacitError, match=r"does not agree to the run: The site's budget .* is used up"):
        deployed(moved, force=True)
    spent = r"coast: epsilon 3, delta 1e-05 per record \((2\.9\d\d|3\.000) spent, (2\.9\d\d|3\.000) sealed\)"
    assert any(re.search(spent, finding.text) for finding in check.findings(moved.folder))


def test_the_site_keeps_its_own_promise_in_words(ran):
    (kept,) = ran.site("coast").glob("runs/*/promise.txt")
    promise = kept.read_text()
    assert promise.startswith("For coast, record-level differential privacy: to add or remove one record of one client")
    assert "the server, the other clients and everybody who sees updates or models can observe" in promise
    assert "the epsilon of the whole run is at most 3.000" in promise
    assert any(promise.strip() in text for text in said(ran))
    shown = CliRunner().invoke(app, ["ledger", str(ran.site("coast"))])
    assert "For coast, record-level differential privacy" in " ".join(shown.output.split())


def test_a_wrong_folder_is_answered_with_the_right_ones_and_rows_that_are_not_there_yet_are_found(hospitals):
    federation = make(rows=False)
    for place, words in (
        ("federation/sites/cost", "the sites here are coast, north, valley"),
        ("nowhere", "make one with `tacit deploy init nowhere`"),
    ):
        with pytest.raises(BadInput, match=words):
            list(check.findings(Path(place)))
    with pytest.raises(BadInput, match=r"it is one site's; the federation may be .*federation"):
        open_federation(Path("federation/sites/coast"))
    with pytest.raises(BadInput, match=r"is no site's folder, as it holds no site.toml"):
        read_settings(federation.folder)
    with pytest.raises(TacitError, match=r"There is no ledger at .*: look at .*coast, .*north, .*valley"):
        find(federation.folder)
    missing = wrong(federation.folder)
    assert len(missing) == 3
    assert all("records.csv does not exist: put the rows there" in text for text in missing)
    assert any("does not exist" in text for text in wrong(federation.site("north")))


def test_a_check_says_who_pays_for_what_is_asked_and_how_many_rows_are_held_out(hospitals):
    federation = make("data.held_out=0.3", 'privacy.stats=["radius"]')
    site = federation.site("north")
    settings = (site / "site.toml").read_text()
    texts = [finding.text for finding in check.findings(federation.folder)]
    asked = "north: is asked once, beside training, for"
    held = "which the records held out pay, while those trained on pay for training: no record pays for both"
    assert f"{asked} results on the rows of data.held_out, for at most epsilon 1.000, {held}" in texts
    within = "for at most epsilon 0.100, which is part of the epsilon of training and not added to it"
    assert f"{asked} statistics of the columns of privacy.stats, {within}" in texts
    said = r"north: 220 rows in records\.csv, of which (\d+) are held out \(data\.held_out\), (\d+) are trained on"
    (parted,) = (found for text in texts if (found := re.match(said, text)))
    assert sum(map(int, parted.groups())) == 220
    (site / "site.toml").write_text(f"{settings}\nheld_out = 0.2\n")
    of_both = r"220 rows .*, of which \d+ are held out \(site\.toml\), \d+ are held out \(data\.held_out\), \d+ are"
    assert any(re.search(of_both, finding.text) for finding in check.findings(federation.folder))
    shutil.rmtree(federation.folder)
    plain = make("privacy.kind=none", "aggregate.rule=mean", "data.held_out=0.3", trial=True)
    without = f"{asked} results on the rows of data.held_out, without noise"
    assert without in [finding.text for finding in check.findings(plain.folder)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("benign\n", "unsure\n", "has the label 'unsure', which data.classes does not declare"),
        ("radius,", "age,", "has no column 'radius', which data.columns names"),
        (",", ";", "does not separate its cells by commas"),
        (None, "", "is empty"),
        (None, f"{COLUMNS}\n", "holds no rows"),
        (None, f"{COLUMNS}\n9,9,x,0.1,benign\n", "line 2, column 'smoothness'"),
    ],
)
def test_a_broken_file_is_named_at_the_site_and_never_to_the_server(hospitals, old, new, words):
    federation = make()
    path = federation.site("coast") / "records.csv"
    path.write_text(new if old is None else path.read_text().replace(old, new))
    (found,) = wrong(federation.folder)
    assert str(path) in found
    assert words in found
    with pytest.raises(BadInput, match="coast"):
        check.refuse_wrong(federation, resume=False, force=False)
    with pytest.raises(TacitError, match=r"coast.*The site cannot take part; the reason is in its log.jsonl") as told:
        deployed(federation, join_seconds=0.4)
    assert words not in str(told.value)
    words = words.replace("label 'unsure'", f"label {HIDDEN}")  # a log quotes no cell
    assert any(words in text and str(path) in text for text in said(federation))


def test_values_beyond_their_range_are_clamped_and_the_site_alone_is_told_and_what_it_answered(hospitals, caplog):
    federation = make("train.rounds=1")
    path = federation.site("coast") / "records.csv"
    path.write_text(path.read_text() + "4000,20,0.1,0.1,benign\n")
    note = "clamped 1 value of 'radius' into its declared range [5, 40]"
    assert wrong(federation.folder) == []
    assert any(note in finding.text for finding in check.findings(federation.folder))
    with caplog.at_level("INFO", logger="tacit.deploy.site"):
        history = deployed(federation)
    assert any(note in text for text in said(federation))
    assert note not in json.dumps(history.summary)
    assert "answered: Takes part in hospitals with 220 rows." in caplog.messages
    for words in ("answered: Agreed: 1 rounds, 10 parameters, epsilon 3 in all", "answered round 1: Trained; epsilon"):
        assert any(line.startswith(words) for line in caplog.messages)


def test_a_server_that_does_not_say_the_columns_is_refused(hospitals):
    federation = make()
    path = federation.app / "tacit_app" / "experiment.toml"
    path.write_text(re.sub(r"(?m)^columns = .*\n", "", path.read_text()))
    with pytest.raises(BadInput, match=r"list them in data.columns"):
        deployed(federation)


def test_check_says_what_a_run_in_the_results_means_and_up_says_how_to_have_another(ran):
    texts = lambda: "\n".join(finding.text for finding in check.findings(ran.folder))  # noqa: E731
    finished_run = "holds a run that is finished (1 rounds); "
    assert f"{finished_run}a new one is refused while north, coast, valley cannot pay" in texts()
    assert "--force" not in texts()
    allow_more(ran, *NAMES)
    assert f"{finished_run}`up --force` sets it aside" in texts()
    with pytest.raises(RunExists, match=r"is finished .*results are in .*`--force` sets it aside"):
        check.refuse_wrong(ran, resume=False, force=False)
    check.refuse_wrong(ran, resume=False, force=True)
    (ran.results / "summary.json").unlink()
    assert "holds a run that is not finished (1 rounds); `up --resume` goes on with it" in texts()


def allow_more(federation, *names):
    """The sites' own people allow a second run of the kind."""
    for name in names:
        path = federation.site(name) / "budget.toml"
        changed = re.sub(r"(?m)^delta = \S+", "delta = 2e-5", path.read_text())
        path.write_text(re.sub(r"(?m)^epsilon = (\S+)", lambda found: f"epsilon = {2 * float(found[1])}", changed))


def test_check_names_every_site_with_nothing_left_and_the_file_that_allows_more(ran):
    allow_more(ran, "valley")
    found = [finding for finding in check.findings(ran.folder) if "does not pay for another run" in finding.text]
    assert [finding.text.partition(":")[0] for finding in found] == ["north", "coast"]
    assert all(finding.note and not finding.wrong for finding in found)  # the run that spent it stands in results/
    for name, finding in zip(("north", "coast"), found, strict=True):
        assert str(ran.site(name) / "budget.toml") in finding.text
        assert "a larger delta in" in finding.text
    shown = CliRunner().invoke(app, ["deploy", "check", "federation"])
    assert "note   north: its budget does not pay for another run" in shown.output
    assert shown.exit_code == 0
    ran.results.rename("elsewhere")
    assert [text.partition(":")[0] for text in wrong(ran.folder)] == ["north", "coast"]


def test_a_site_that_is_said_to_have_nothing_left_is_one_that_refuses_the_run(hospitals):
    federation = make("train.rounds=1", "privacy.delta_share=0.5")
    deployed(federation)  # half of delta is left, and epsilon is not
    experiment = Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    assert {one.site: one.keys for one in short_sites(federation, experiment)} == dict.fromkeys(NAMES, ("epsilon",))
    with pytest.raises(TacitError, match="is used up"):
        deployed(federation, force=True)
    federation.site("north").rename("away")  # then nobody knows the price of a round, and some epsilon is left
    assert short_sites(federation, experiment) == []


def test_where_a_run_is_paid_for_as_a_whole_a_site_that_could_pay_for_a_part_of_it_is_named(hospitals):
    central = ("privacy.kind=central", "privacy.epsilon=2", "privacy.delta_share=0.5", "aggregate.rule=mean")
    federation = make(*(*central, "train.rounds=2"), trial=True)
    deployed(federation)
    experiment = Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    for name in NAMES:
        path = federation.site(name) / "budget.toml"
        path.write_text(path.read_text().replace("epsilon = 2.0", "epsilon = 3.7"))  # one more round, and not two
    assert [one.keys for one in short_sites(federation, experiment)] == [("epsilon",)] * 3
    with pytest.raises(TacitError, match="does not pay for 2 more rounds"):
        deployed(federation, force=True)


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_up_leaves_a_finished_run_where_it_is_when_sites_cannot_pay_for_another(ran, options):
    kept = {path.name: path.read_bytes() for path in ran.results.iterdir() if path.is_file()}
    refused = CliRunner().invoke(app, ["deploy", "up", "federation", *options])
    assert isinstance(refused.exception, BudgetExhausted if options else RunExists)
    text = str(refused.exception)
    assert "another run is refused while north, coast and valley cannot pay for it: `tacit deploy check " in text
    assert len(text.split()) < 50
    assert "--force" not in text
    assert options or f"The run is finished (1 rounds), and its results are in {ran.results}" in text
    assert {path.name: path.read_bytes() for path in ran.results.iterdir() if path.is_file()} == kept
    assert not Path("federation/results.1").exists()
    assert not (ran.server / "superlink.log").exists()


def test_resuming_a_finished_deployment_starts_nothing_and_shows_it(ran):
    done = CliRunner().invoke(app, ["deploy", "up", "federation", "--resume"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "The run is finished, so nothing was started" in done.output
    assert "ledger of coast" in done.output
    assert not (ran.server / "superlink.log").exists()


def test_a_site_whose_folder_was_given_away_stays_known_to_the_server(hospitals):
    federation = make()
    federation.site("coast").rename(hospitals / "given")
    assert federation.public_key("coast").read_bytes() == (hospitals / "given" / "node.pub").read_bytes()
    assert wrong(federation.folder) == []
    with pytest.raises(BadInput, match="`up` cannot start coast"):
        check.refuse_wrong(federation, resume=False, force=False)


def test_the_server_says_every_round_and_where_the_page_is(ran, ran_once, capsys):
    spent = {"epsilon_tightest": 0.25, "epsilon_loosest": 2.0, "other_runs": 0}
    chosen = Experiment.load(ran.app / "tacit_app" / "experiment.toml")
    observer(chosen)({"round": 0, "accuracy": 0.5, "answered": 2, "cohort": 3} | spent)
    ending(ran_once[1])
    lines = capsys.readouterr().out
    told = "round 1/1  accuracy 0.500  epsilon per record 0.250 to 2.000 (this run)  2 of 3 sites"
    assert told in lines
    assert f"report: {ran_once[1].out / 'report.html'}" in lines
    assert "add or remove one record of one client" in lines
    found = run_page(read(ran.results))
    assert [max(curve["epsilon"]) > 0.9 for curve in found["curves"]] == [True] * 3
    assert found["clients"]["sizes"] == [220, 130, 70]
    assert found["labels"] is None  # the server knows no site's labels
    with pytest.raises(RunExists) as refusal:
        deployed(ran)
    assert "use --run-config 'resume=true' to go on" in in_flowers_words(refusal.value)


@pytest.mark.faults
def test_the_walk_through_of_the_documentation_works_as_it_is_written(tmp_path):
    text = (ROOT / "docs" / "how-to-deploy.md").read_text()
    (walk,) = re.findall(r"## Three hospitals.*?```sh\n(.*?)```", text, flags=re.S)
    walk = walk.replace(
        "tacit deploy init ", f"tacit deploy init --address 127.0.0.1:{free_port()} "
    )  # others may use the usual one
    env = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-ec", walk], cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    place = tmp_path / "hospitals" / "federation"
    assert json.loads((place / "results" / "summary.json").read_text())["test_accuracy"] > 0.6
    assert (place / "results" / "report.html").is_file()
    assert "Written: north.csv (10 charges of 1 client)" in done.stdout
    assert "ok: 10 charges of 1 client, each with a price and a time." in done.stdout


def test_a_damaged_summary_is_a_finding_and_not_a_traceback(hospitals):
    federation = make("train.rounds=1", 'privacy.stats=["diagnosis"]', trial=True)
    history = deployed(federation)
    console = Console(record=True, width=200, file=io.StringIO())
    closing(history.summary, federation.results, console)
    assert f"Statistics: {federation.results / 'stats.json'} (tacit stats" in console.export_text()
    (federation.results / "summary.json").write_text('{"rounds": "many"}')
    assert any("summary.json is damaged" in text for text in wrong(federation.folder))
    with pytest.raises(BadInput, match=r"summary.json is damaged"):
        finished(federation.results)
