"""A statement says what the guarantee says, of whatever folder it is asked; a schema holds its form, and nothing is left blank."""

import json
import re
import shutil
import sqlite3
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import ready
from redteam.lying_server import Server, experiment
from report_runs import EVIL, changed
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate.site_statement import of_site
from tacit.errors import BadInput, LedgerError
from tacit.lab.compare.grid import GRID
from tacit.lab.grid import compare
from tacit.lab.tuning.search import tune
from tacit.report import statement

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "assets" / "statement.schema.json").read_text("utf-8"))
RELEASE = {"epsilon": 0.2, "delta": 1e-7, "unit": "record", "purpose": "table 3"}


def stated(folder, *, of=statement.of_folder):
    """The record of a statement, which the schema takes, and its page."""
    return stated_in(folder, folder, of=of)


def stated_in(folder, place, *, of=statement.of_folder):
    one = of(folder)
    found = json.loads(json.dumps(statement.record(one), allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    data, page = statement.write(folder, one)
    assert (data.parent, page.parent) == (place, place)
    assert json.loads(data.read_text("utf-8")) == found
    return found, page.read_text("utf-8")


def run(place, **changes):
    return tacit.run(changed(run={"workers": 1, "randomness": "os"}, **changes), out=place, page=False)


def test_every_word_of_a_runs_statement_is_that_of_its_guarantee_and_every_number_its_ledgers(tmp_path):
    done = run(tmp_path / "run")
    found, page = stated(done.out)
    assert found["sentence"] == done.sentence
    assert found["guarantee"] == json.loads(json.dumps(done.guarantee.record()))
    assert found["release"] == {"allowed": True, "why_not": []}
    assert [one["epsilon"] for one in found["clients"]] == [
        pytest.approx(done.ledger.alone(tacit.types.Client(0, name, tacit.Budget(9.0, 1e-5), None, None)))
        for name in (one["name"] for one in found["clients"])
    ]
    assert max(one["epsilon"] for one in found["clients"]) == pytest.approx(done.guarantee.epsilon_max)
    assert "sampled-gaussian" in found["mechanism"]
    assert found["accounting"]["versions"]["tacit"] == tacit.__version__
    assert "not covered" in found["registry"]["deployment"]["product"]["intended_use"]
    for text in (done.guarantee.adversary, done.guarantee.relation, "operating system", "NIST SP 800-226"):
        assert text in page.replace("&#x27;", "'")


def test_clients_own_test_rows_are_not_called_public(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    data = tacit.Dataset(x, (x[:, 0] > 0).astype(int), clients=["a", "b"] * 100, classes=2, test_share=0.3)
    done = tacit.run(
        {"train": {"rounds": 2}, "privacy": {"kind": "local", "epsilon": 3.0}},
        data=data,
        out=tmp_path / "run",
        page=False,
    )
    found, _ = stated(done.out)
    utility = next(one["text"] for one in found["evaluation"] if one["heading"] == "Utility")
    assert "public" not in utility
    for text in (utility, found["registry"]["deployment"]["dp_flavor"]["unprotected_quantities"]):
        assert (
            f"{len(data.rows.test_y)} of the clients' own records are test rows, for which nothing is promised" in text
        )
    assert found["promised"]["for every client"].startswith("epsilon at most")


def test_a_run_with_seeded_noise_says_not_for_release(ended, tmp_path):
    found, page = stated(shutil.copytree(ended, tmp_path / "run"))
    assert not found["release"]["allowed"]
    assert "a seed" in found["release"]["why_not"][0]
    assert "Not for release: noise is drawn from a seed" in page


def test_a_run_without_privacy_says_so(tmp_path):
    found, page = stated(run(tmp_path / "run", privacy={"kind": "none", "epsilon": None}).out)
    assert found["release"]["why_not"] == ["no privacy is promised"]
    assert found["guarantee"] is None
    assert found["sentence"].startswith("No privacy is promised")
    assert found["clients"] == found["ledger"] == []
    assert "Not for release: no privacy is promised." in page


def test_a_client_without_a_limit_that_was_never_charged_has_no_bound_and_not_epsilon_zero(ended, tmp_path):
    place = shutil.copytree(ended, tmp_path / "run")
    known = json.loads((place / "clients.json").read_text())
    (place / "clients.json").write_text(json.dumps(known | {"limits": [None, *known["limits"][1:]]}))
    with sqlite3.connect(place / "ledger.db") as db:
        db.execute("DELETE FROM charges WHERE client = ?", (known["names"][0],))
    found, page = stated(place)
    assert found["clients"][0] == {"name": known["names"][0], "epsilon": None, "delta": 1e-5, "limit": None}
    assert "<td>inf</td><td>1e-05</td><td>none</td>" in page


def test_a_run_that_was_stopped_says_what_is_spent_so_far(stopped):
    found, _ = stated(stopped)
    assert "it has not ended, and what is said here is so far" in found["release"]["why_not"]
    assert found["of"] == "a run, which has not ended (3 of 6 rounds)"
    assert found["sentence"].startswith("So far: ")
    assert 0 < found["guarantee"]["epsilon"]["max"] < 8.0
    assert max(one["epsilon"] for one in found["clients"]) == pytest.approx(found["guarantee"]["epsilon"]["max"])


@pytest.mark.parametrize(
    "privacy",
    [
        {"kind": "central", "epsilon": 3.0, "noise_multiplier": None},
        {"kind": "distributed", "epsilon": 8.0, "fewest_reports": 2, "clip": 0.5},
        {"kind": "local", "unit": "client", "epsilon": 8.0},
    ],
    ids=["central", "distributed", "clients"],
)
def test_every_kind_has_a_statement_with_what_holds_against_who_sees_more(tmp_path, privacy):
    done = run(tmp_path / "run", privacy=privacy, train={"rounds": 2})
    found, page = stated(done.out)
    assert found["guarantee"]["unit"] == "client"
    assert found["registry"]["deployment"]["privacy_loss"]["privacy_unit"] == "client-level"
    assert len(found["guarantee"].get("also", [])) == len(done.guarantee.also)
    for other in done.guarantee.also:
        assert other.adversary in page.replace("&#x27;", "'")


def test_a_shared_ledger_is_told_per_unit_with_its_other_releases_and_never_added_across_units(tmp_path):
    shared = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.3}
    first = run(tmp_path / "one", privacy={"epsilon": 2.0} | shared)
    tacit.Ledger(tmp_path / "shared.db", budget=tacit.Budget(9.0, 1e-5)).charge(**RELEASE)
    run(tmp_path / "two", privacy={"epsilon": 3.0, "unit": "client"} | shared)
    found, page = stated(first.out)
    client, record = found["ledger"]
    assert (client["unit"], client["runs"], client["releases"]) == ("client", 1, [])
    assert (record["unit"], record["runs"], record["releases"]) == ("record", 1, ["table 3"])
    assert record["epsilon"] == pytest.approx(first.guarantee.epsilon_max + 0.2, rel=0.1)
    assert record["delta"] == pytest.approx(3e-6 + 1e-7)
    assert "table 3" in page


def test_an_audit_and_malicious_clients_are_said(tmp_path):
    done = run(tmp_path / "run")
    audit = {
        "sentence": "At least 9 is shown.",
        "looks": 2,
        "rejected": True,
        "delta": 1e-5,
        "groups": [],
        "pictures": [],
    }
    (done.out / "audit.json").write_text(json.dumps(audit))
    found, _ = stated(done.out)
    assert found["audit"] == "At least 9 is shown. The canaries were looked at 2 times."
    assert found["release"]["why_not"] == ["an audit rejects what is promised: At least 9 is shown."]


def test_the_best_of_a_search_has_the_price_of_the_search(tmp_path):
    settings = {
        "data": {"clients": 4, "examples_per_client": 60},
        "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.5},
        "privacy": {"kind": "central", "epsilon": 6.0, "noise_multiplier": 3.0, "delta": 1e-5},
    }
    found = tune(settings, {"train.learning_rate": [0.1, 0.5]}, runs=2, out=tmp_path / "search")
    for folder in (tmp_path / "search", tmp_path / "search" / "best"):
        one, _ = stated(folder)
        assert one["sentence"] == found["sentence"]
        assert one["guarantee"] == found["guarantee"]
        assert "the best of a search of 2 runs" in one["of"]
        assert one["promised"]["spent in"].startswith("this search")
        assert one["ledger"][0]["epsilon"] >= found["guarantee"]["epsilon"]["max"]
    alone, page = stated(tmp_path / "search" / "runs" / "002")
    assert alone["guarantee"]["epsilon"]["max"] < found["guarantee"]["epsilon"]["max"]
    assert "this epsilon leaves out the other runs of its search" in alone["release"]["why_not"][-1]
    assert "Not for release" in page


@pytest.mark.parametrize("shared", [False, True])
def test_one_run_of_a_comparison_is_for_release_only_where_a_ledger_adds_up_all_of_them(tmp_path, shared):
    ledger = {"ledger": str(tmp_path / "shared.db"), "delta_share": 0.2} if shared else {}
    privacy = {"kind": "local", "epsilon": 4.0, "noise_multiplier": 3.0, "delta": 1e-3, **ledger}
    base = {"data": {"clients": 3, "examples_per_client": 40}, "train": {"rounds": 1, "local_steps": 2}}
    base |= {"privacy": privacy, "run": {"workers": 1, "randomness": "os"}}
    with ready.workers():
        compare(tacit.Experiment(**base), {"train.learning_rate": [0.1, 0.5]}, seeds=1, out=tmp_path / "all", jobs=1)
    for place in (tmp_path / "all").glob("runs/*/seed-*"):
        found, _ = stated(place)
        assert found["release"]["allowed"] is shared
        assert all("the other runs of its comparison" in why for why in found["release"]["why_not"])


def test_a_federations_statement_is_that_of_its_results_and_lies_there(tmp_path, ended):
    (tmp_path / "federation.toml").write_text("")
    shutil.copytree(ended, tmp_path / "results")
    found, page = stated_in(tmp_path, tmp_path / "results")
    assert found["of"].startswith("a deployed run")
    assert "what each site has sealed in all is in its own ledger" in page


def test_folders_of_several_runs_or_none_are_refused_in_a_sentence(tmp_path, ended):
    (tmp_path / GRID.file).write_text("")
    with pytest.raises(BadInput, match="is a comparison, and each of its runs has its own promise"):
        statement.of_folder(tmp_path)
    with pytest.raises(BadInput, match="There is no folder"):
        statement.of_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no run"):
        statement.of_folder(tmp_path / "empty")
    (tmp_path / "federation.toml").write_text("")
    (tmp_path / GRID.file).unlink()
    with pytest.raises(BadInput, match="has not run yet"):
        statement.of_folder(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", '{"guarantee": 3}'),
        ("experiment.toml", "= 3"),
        ("clients.json", "[]"),
        ("audit.json", "{}"),
        ("ledger.db", "not a ledger"),
        ("ledger.db", None),
        ("rounds.jsonl", "nonsense\n"),
    ],
)
def test_a_damaged_folder_is_one_sentence_exit_code_2_and_no_statement(tmp_path, ended, file, content):
    place = shutil.copytree(ended, tmp_path / "run")
    (place / file).unlink(missing_ok=True)
    if content is not None:
        (place / file).write_text(content)
    done = CliRunner().invoke(app, ["statement", str(place)])
    assert isinstance(done.exception, BadInput | LedgerError)
    assert "\n" not in str(done.exception)
    assert not (place / statement.PAGE).exists()


def test_a_model_alone_and_a_run_before_its_clients_have_no_statement(tmp_path, ended):
    (tmp_path / "model").mkdir()
    for name in ("experiment.toml", "run.json", "model.safetensors"):
        shutil.copy(ended / name, tmp_path / "model")
    with pytest.raises(BadInput, match="holds a model alone, or a run that has not come to its clients"):
        statement.of_folder(tmp_path / "model")


def test_a_file_that_is_no_statement_is_not_overwritten(tmp_path, ended):
    place = shutil.copytree(ended, tmp_path / "run")
    (place / statement.PAGE).write_text("mine")
    with pytest.raises(BadInput, match="is another file"):
        statement.write(place, statement.of_folder(place))
    assert (place / statement.PAGE).read_text() == "mine"


def test_names_and_purposes_that_are_markup_stay_text(evil, tmp_path):
    place = shutil.copytree(evil, tmp_path / "run")
    found, page = stated(place)
    assert {one["name"] for one in found["clients"]} <= {name.replace("\u2028", "?") for name in EVIL}
    assert "<script" not in page
    assert not re.search(r"<(img|svg)", page)
    assert "&lt;script&gt;alert(1)" in page


def test_an_epsilon_that_is_no_bound_is_null_in_the_file_and_inf_on_the_page(tmp_path, ended):
    place = shutil.copytree(ended, tmp_path / "run")
    summary = json.loads((place / "summary.json").read_text())
    summary["guarantee"]["epsilon"] = {"min": 1.0, "median": 2.0, "max": None}
    (place / "summary.json").write_text(json.dumps(summary))
    found, page = stated(place)
    assert found["registry"]["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] is None
    assert "epsilon at most inf" in page


@pytest.fixture
def site(tmp_path):
    return Server(tmp_path / "site", experiment(privacy={"delta_share": 0.3}))


def test_a_sites_statement_is_of_all_that_its_ledger_has_sealed(site):
    tacit.Ledger(site.folder).charge(**RELEASE)
    found, _ = stated(site.folder, of=of_site)
    assert found["release"]["why_not"] == ["the site has agreed to no run that promises anything"]
    site.agree()
    site.train(0)
    found, page = stated(site.folder, of=of_site)
    assert found["release"]["allowed"]
    assert found["sentence"].endswith((site.folder / "runs" / ("0" * 32) / "promise.txt").read_text().strip())
    (row,) = found["ledger"]
    assert (row["runs"], row["releases"], row["limit"]) == (1, ["table 3"], {"epsilon": 1.0, "delta": 1e-5})
    assert (
        row["epsilon"]
        == found["guarantee"]["epsilon"]["max"]
        == pytest.approx(tacit.Ledger(site.folder).spent().epsilon)
    )
    assert found["guarantee"]["delta"] == pytest.approx(3e-6 + 1e-7)
    assert found["guarantee"]["adversary"] == site.parts.promise.adversary
    assert found["promised"]["spent in"].startswith("all runs and other releases")
    assert "epsilon-delta, sampled-gaussian" in found["mechanism"]
    assert "table 3" in page
    assert (site.folder / statement.JSON).stat().st_mode & 0o077 == 0


def test_a_site_says_what_it_does_not_know_any_more_and_what_was_a_trial(site):
    site.agree()
    site.train(0)
    (site.folder / "runs" / ("0" * 32) / "promise.json").unlink()
    found, _ = stated(site.folder, of=of_site)
    assert "what run 00000000 promised is not here any more" in found["release"]["why_not"]


def test_a_site_that_agreed_to_a_run_without_privacy_or_with_a_seed_says_so(site):
    site.budget("trial = false", "trial = true") if "trial = false" in (
        site.folder / "budget.toml"
    ).read_text() else None
    site.agree()
    place = site.folder / "runs" / ("0" * 32)
    kept = json.loads((place / "agreement.json").read_text())
    kept["terms"]["event"], kept["experiment"] = "", kept["experiment"].replace('"os"', '"seeded"')
    (place / "agreement.json").write_text(json.dumps(kept))
    found, _ = stated(site.folder, of=of_site)
    assert "of run 00000000 no privacy is promised" in found["release"]["why_not"]
    assert any("draws its noise from a seed" in text for text in found["release"]["why_not"])


def test_runs_against_different_adversaries_are_said_as_such(site):
    site.agree()
    site.train(0)
    other = site.folder / "runs" / ("1" * 32)
    shutil.copytree(site.folder / "runs" / ("0" * 32), other)
    kept = json.loads((other / "promise.json").read_text())
    (other / "promise.json").write_text(json.dumps(kept | {"adversary": "everybody but the server"}))
    (other / "agreement.json").write_text((other / "agreement.json").read_text().replace("0" * 32, "1" * 32))
    said = stated(site.folder, of=of_site)[0]["guarantee"]["adversary"]
    assert said.startswith("whoever sees of each run no more than its own promise allows: ")
    assert "everybody but the server" in said
    assert "; or " in said


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("budget.toml", "epsilon = 'x'"),
        ("ledger.db", None),
        ("ledger.db", "nonsense"),
        (f"runs/{'0' * 32}/promise.json", "{}"),
        (f"runs/{'0' * 32}/promise.json", "["),
        (f"runs/{'0' * 32}/agreement.json", "{}"),
    ],
)
def test_a_damaged_site_is_one_sentence(site, file, content):
    site.agree()
    site.train(0)
    (site.folder / file).unlink()
    if content is not None:
        (site.folder / file).write_text(content)
    done = CliRunner().invoke(app, ["statement", str(site.folder)])
    assert isinstance(done.exception, BadInput | LedgerError)
    assert "\n" not in str(done.exception)


def test_a_purpose_that_was_forged_in_a_ledger_stays_text(site):
    tacit.Ledger(site.folder).charge(**RELEASE)
    with sqlite3.connect(site.folder / "ledger.db") as db:
        db.execute("UPDATE batches SET attempt = ? WHERE round = -3", ("</td><script>alert(1)</script>\x1b",))
    found, page = stated(site.folder, of=of_site)
    assert found["ledger"][0]["releases"] == ["</td><script>alert(1)</script>?"]
    assert "<script" not in page


def test_the_command_prints_where_it_is_and_json(ended, tmp_path):
    place = shutil.copytree(ended, tmp_path / "run")
    said = CliRunner().invoke(app, ["statement", str(place)]).output
    assert f"Statement: {place / 'statement.json'}\nStatement: {place / 'statement.html'}\nNot for release: " in said
    printed = json.loads(CliRunner().invoke(app, ["statement", str(place), "--json"]).output)
    assert printed["format"] == statement.FORMAT
