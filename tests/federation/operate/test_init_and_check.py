import hashlib
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from known_keys import safe_prime_key
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.crypto import keys
from tacit.deploy.operate import inspect as check
from tacit.deploy.operate.certificates import days_left, make_authority, make_node_key, make_server
from tacit.deploy.operate.init import init
from tacit.deploy.operate.layout import open_federation
from tacit.deploy.operate.processes import Processes, free_port
from tacit.deploy.operate.serve import run_command
from tacit.deploy.operate.site_process import run_site
from tacit.deploy.site import keys as key_files
from tacit.deploy.site.consent import digest, lines_to_list
from tacit.deploy.site.limits import read_limits
from tacit.engine.assemble import build
from tacit.errors import BadInput, BudgetExhausted


def make(folder, *, sites="3", trial=False, host="127.0.0.1", **changes):
    values = {"data": {"clients": 20}, "train": {"rounds": 2}, "privacy": {"kind": "local", "epsilon": "uniform"}}
    for section, change in changes.items():
        values[section] = values.get(section, {}) | change
    experiment = tacit.Experiment(name="trial", **values)
    return init(folder, sites=sites, experiment=experiment, host=host, port=free_port(), trial=trial)


@pytest.fixture
def federation(tmp_path):
    return make(tmp_path / "federation")


def wrong(federation):
    return [finding.text for finding in check.findings(federation.folder) if finding.wrong]


def test_a_new_federation_holds_everything_for_its_owner_alone_and_nothing_is_wrong(federation, tmp_path):
    assert federation.sites == ("client-0", "client-1", "client-2")
    files = {"site.toml", "budget.toml", "proposal.toml", "ledger.db", "node.key", "node.pub", "ca.crt", "services"}
    for name in federation.sites:
        assert {path.name for path in federation.site(name).iterdir()} == files
    assert wrong(federation) == []
    assert open_federation(federation.folder) == federation
    private = [*federation.folder.rglob("*.key")]
    assert len(private) == 5
    assert all(key.stat().st_mode & 0o077 == 0 for key in private)
    experiment = tacit.Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    assert experiment.run.randomness == "os"
    assert experiment.data.clients == 3
    limits = read_limits(federation.site("client-1"))
    assert limits.accept.experiments == (digest(experiment),)
    assert not limits.trial
    assert read_limits(make(tmp_path / "seeded", trial=True).site("client-1")).trial
    text = (federation.folder / "README.md").read_text()
    commands = ("tacit deploy up .", "tacit deploy server .", "tacit deploy site sites/client-2")
    for words in (
        *commands,
        "flwr run app federation --stream",
        f"Open port {federation.port} to the sites, and no other",
    ):
        assert words in text
    assert str(federation.folder.parent) not in text
    words = run_command(federation).split()
    assert {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", f"FLWR_HOME={federation.home}"} <= set(words)
    assert words[-5:] == ["flwr", "run", str(federation.app), "federation", "--stream"]


@pytest.mark.parametrize(
    ("noise", "follows"), [({}, "its noise follows from 1"), ({"noise_multiplier": 9.0}, "no run may cost it more")]
)
def test_a_site_that_grants_less_than_was_proposed_is_told_what_follows(tmp_path, noise, follows):
    made = make(tmp_path / "federation", privacy={"kind": "local", "epsilon": 3.0, **noise})
    budget = made.site("client-1") / "budget.toml"
    budget.write_text(budget.read_text().replace("epsilon = 3.0", "epsilon = 1.0"))
    for folder in (made.folder, made.site("client-1")):
        said = [finding.text for finding in check.findings(folder) if "proposed" in finding.text]
        assert len(said) == 1, said
        assert said[0].startswith("client-1: epsilon 1, ")
        assert said[0].endswith(f"; 3 proposed, 1 granted by budget.toml: {follows}")


def test_what_is_wrong_with_a_site_is_said_once_under_its_name_wherever_its_folder_lies(
    federation, tmp_path, monkeypatch
):
    moved = tmp_path / "elsewhere"
    shutil.copytree(federation.site("client-1"), moved)
    (moved / "budget.toml").write_text('epsilon = "x"\n', "utf-8")
    (federation.site("client-0") / "site.toml").write_text("name = ")
    for folder in (federation.folder, federation.site("client-0")):
        (said,) = [finding.text for finding in check.findings(folder) if "site.toml" in finding.text]
        assert said.startswith("client-0: ")
    monkeypatch.chdir(moved)
    found = [finding.text for finding in check.findings(moved.relative_to(moved)) if finding.wrong]
    assert found[0].startswith("client-1: budget.toml: expected epsilon to be a number")


def test_the_server_certificate_is_accepted_by_openssl(federation):
    command = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "server.pem"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    done = subprocess.run(command, cwd=federation.server, capture_output=True, text=True, check=False)
    assert "server.pem: OK" in done.stdout, done.stderr


def test_sites_with_rows_of_their_own_are_named(tmp_path):
    (tmp_path / "test.csv").write_text("a,ill\n1,no\n2,yes\n")
    data = {
        "name": "csv",
        "path": "x.csv",
        "test_path": str(tmp_path / "test.csv"),
        "partition": "natural",
        "test_share": 0,
    }
    csv = {
        "data": data | {"label": "ill", "classes": ["no", "yes"], "numeric": {"a": [0, 2]}},
        "privacy": {"epsilon": {"north": 1.0, "coast": 3.0}},
    }
    made = make(tmp_path / "f", sites="north,coast", **csv)
    assert made.sites == ("north", "coast")
    assert [read_limits(made.site(name)).epsilon for name in made.sites] == [1.0, 3.0]
    assert 'data = "records.csv"' in (made.site("north") / "site.toml").read_text()
    with pytest.raises(BadInput, match="give the number of sites, as in --sites 2; names are for csv and npz"):
        make(tmp_path / "g", sites="north,coast")
    for sites in ("3", "north,north", "north,../x"):
        with pytest.raises(BadInput, match="name them, each once"):
            make(tmp_path / "g", sites=sites, **csv)


NATURAL = {"name": "csv", "path": "x", "classes": 2, "partition": "natural"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"level": "maximum"}}, "its own budget"),
        ({"privacy": {"ledger": "x.db", "delta_share": 0.1}}, "its own ledger"),
        ({"data": {"name": "csv", "path": "x.csv", "classes": 2}}, 'data.partition = "natural"'),
        (
            {"data": {"name": "csv", "path": "x.csv", "classes": 2, "client_column": "z"}},
            'leave out data.client_column; set data.partition = "natural"; set data.test_path',
        ),
        ({"data": NATURAL}, "data.test_path"),
        ({"data": {**NATURAL, "test_path": "y", "client_column": "z"}}, "leave out data.client_column"),
    ],
)
def test_what_makes_sense_in_one_process_only_is_refused(tmp_path, changes, words):
    with pytest.raises(BadInput, match=words):
        make(tmp_path / "f", sites="a,b" if "data" in changes else "3", **changes)
    assert not (tmp_path / "f").exists()


PUBLIC = {
    "privacy": {"kind": "distributed", "epsilon": 3.0},
    "aggregate": {"rule": "pfa"},
    "protect": {"kind": "paillier"},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"clients_per_round": 9}}, "Expected train.clients_per_round <= 3 clients, got 9"),
        ({"train": {"min_clients": 9}}, "Expected train.min_clients <= the clients of a round, got 9"),
        ({"run": {"device": "cuda:7"}}, "run.device = 'cuda:7' cannot be used on this machine"),
        ({"metric": {"choose": "rmse"}}, "metric.choose = 'rmse' cannot be computed"),
        ({"data": {"name": "csv"}, "model": {"name": "cnn"}}, "cnn"),
        (PUBLIC, "so that no sum is left to hide"),
    ],
)
def test_what_a_run_refuses_is_refused_before_a_federation_is_made_and_found_by_check(
    tmp_path, monkeypatch, changes, words
):
    sites = "north,coast,valley" if changes.get("data") else "3"
    if changes.get("data"):
        changes = changes | {
            "data": changes["data"] | {"path": "x.csv", "label": "ill", "classes": ["no", "yes"], "columns": ["age"]}
        }
        changes["data"] |= {"numeric": {"age": [0, 100]}, "partition": "natural", "test_share": 0}
    with pytest.raises(BadInput, match=words):
        make(tmp_path / "federation", sites=sites, **changes)
    assert not (tmp_path / "federation").exists()
    monkeypatch.setattr(
        "tacit.deploy.operate.init.refuse_unbuildable", lambda *_: None
    )  # as an earlier version made it
    if not {"protect", "data"} & set(changes):  # else sites have no keys yet, or no rows
        assert words in " ".join(wrong(make(tmp_path / "federation", sites=sites, **changes)))


def test_a_folder_that_is_not_empty_is_left_alone(federation):
    with pytest.raises(BadInput, match="is not empty"):
        make(federation.folder)
    with pytest.raises(BadInput, match="holds no federation"):
        open_federation(federation.folder / "sites")


@pytest.mark.parametrize(
    "host", ["", "$(id)", "a b", "a\nExecStart=/bin/sh", "-x", "a..b", "::1", "ä.org", "a" * 254, "%h"]
)
def test_a_host_that_is_no_name_and_no_address_is_written_nowhere(tmp_path, federation, host):
    with pytest.raises(BadInput, match="name or an IPv4 address"):
        make(tmp_path / "f", host=host)
    assert not (tmp_path / "f").exists()
    written = federation.folder / "federation.toml"
    written.write_text(written.read_text().replace('host = "127.0.0.1"', f"host = {json.dumps(host)}"))
    with pytest.raises(BadInput, match="name or an IPv4 address"):
        open_federation(federation.folder)


def test_a_certificate_that_is_expired_or_of_another_authority_is_found(federation, tmp_path):
    make_server(federation.server, hosts=("127.0.0.1",), days=-3)
    assert any("server.pem expired 3.0 days ago" in text for text in wrong(federation))
    assert days_left(federation.server / "ca.crt") > 300
    other = tmp_path / "other"
    other.mkdir()
    make_authority(other, name="other")
    make_server(other, hosts=("127.0.0.1",))
    shutil.copy(other / "server.pem", federation.server / "server.pem")
    assert any("was not signed by" in text for text in wrong(federation))
    shutil.copy(other / "ca.crt", federation.site("client-1") / "ca.crt")
    assert any("client-1/ca.crt is not the certificate" in text for text in wrong(federation))
    (federation.server / "server.pem").write_text("nonsense")
    assert any("cannot be read as a certificate" in text for text in wrong(federation))


def test_two_sites_with_one_key_are_found(federation):
    for name in ("node.key", "node.pub"):
        shutil.copy(federation.site("client-0") / name, federation.site("client-2") / name)
    assert wrong(federation) == ["The sites client-0 and client-2 have one key: make a key for each."]
    make_node_key(federation.site("client-2"))
    assert wrong(federation) == []
    (federation.site("client-2") / "node.pub").unlink()
    assert any("node.pub is missing" in text for text in wrong(federation))


@pytest.mark.parametrize("name", ["experiment.toml", "server_app.py", "client_app.py"])
def test_a_tampered_app_folder_is_found(federation, name):
    package = federation.app / "tacit_app"
    with (package / name).open("a") as file:
        file.write("\n# a word more\n")
    assert any("was changed after it was made" in text for text in wrong(federation))
    (package / "extra.py").write_text("")
    assert any("extra.py is no part of the app" in text for text in wrong(federation))
    (package / "extra.py").unlink()
    (package / "__init__.py").unlink()
    assert any("is missing from the app" in text for text in wrong(federation))


def test_an_experiment_that_a_site_does_not_accept_is_found(federation):
    path = federation.site("client-1") / "budget.toml"
    path.write_text(path.read_text().replace("most_rounds = 2", "most_rounds = 1"))
    assert wrong(federation) == ["client-1: The server asks for 2 rounds; the site allows 1."]
    path.write_text("epsilon = -1\ndelta = 1e-5\n")
    assert wrong(federation) == [f"client-1: {path}: Expected epsilon > 0, got -1.0."]
    path.unlink()
    path.mkdir()
    assert any("client-1: The budget file" in text and "cannot be read" in text for text in wrong(federation))


def let_through(folder):
    """Lets every user pass down to a folder."""
    for place in (folder, *folder.parents):
        if place.stat().st_mode & 0o005 != 0o005:
            place.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not read the file")
def test_a_budget_file_that_the_user_cannot_read_is_found(federation, tmp_path):
    let_through(tmp_path)
    os.seteuid(65534)
    try:
        with pytest.raises(BadInput, match=r"is closed to user 65534: .* run this as the owner"):
            wrong(federation)
        os.seteuid(0)
        for path in (federation.folder, *federation.folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (federation.site("client-1") / "budget.toml").chmod(0o600)
        os.seteuid(65534)
        assert any("cannot be read by user" in text for text in wrong(federation))
    finally:
        os.seteuid(0)


def test_a_port_in_use_is_found_before_anything_starts(federation, monkeypatch):
    monkeypatch.setattr(check, "reach", partial(check.reach, seconds=0.2))
    with socket.socket() as line:  # whatever it is, it says nothing
        line.bind(("127.0.0.1", federation.port))
        line.listen()
        assert any(f"Port {federation.port} is in use by something else" in text for text in wrong(federation))
        with pytest.raises(BadInput, match=f"Port {federation.port} is in use"):
            check.refuse_wrong(federation, resume=False, force=False)


def test_a_site_is_told_that_its_server_cannot_be_reached(federation):
    found = [finding.text for finding in check.findings(federation.site("client-0")) if finding.wrong]
    assert len(found) == 1
    assert f"The server 127.0.0.1:{federation.port} cannot be reached" in found[0]


def test_a_site_without_its_key_is_refused_by_check_as_by_the_run(federation):
    folder = federation.site("client-0")
    (folder / "node.key").unlink()
    with pytest.raises(BadInput, match=r"node\.key is missing: the site cannot prove who it is") as refused:
        run_site(folder)
    assert str(refused.value) in [finding.text for finding in check.findings(folder) if finding.wrong]


def test_another_version_of_flower_is_found_and_none_too(federation, monkeypatch):
    from importlib.metadata import PackageNotFoundError

    import tacit.deploy.server as flower

    monkeypatch.setattr(flower, "version", lambda name: "1.17.0")
    assert wrong(federation) == [
        'Tacit works with flwr >=1.41,<1.43, and 1.17.0 is installed: pip install "tacit[flower]"'
    ]

    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flower, "version", absent)
    assert wrong(federation) == ['Flower is not installed: pip install "tacit[flower]"']
    with pytest.raises(BadInput, match="Flower is not installed"):
        flower.require_flwr()


ENCRYPTED = {
    "privacy": {"kind": "distributed", "epsilon": 8.0, "fewest_reports": 2},
    "protect": {"kind": "paillier", "key": {"bits": 2048}},
}


@pytest.fixture(scope="module")
def sealed_once(tmp_path_factory):
    return make(tmp_path_factory.mktemp("sealed") / "federation", **ENCRYPTED)


@pytest.fixture
def sealed(sealed_once, tmp_path):
    """A federation with a split key, which a test may damage."""
    shutil.copytree(sealed_once.folder, tmp_path / "sealed")
    return open_federation(tmp_path / "sealed")


def test_a_deployed_key_is_split_and_the_experiment_says_so(sealed):
    experiment = tacit.Experiment.load(sealed.app / "tacit_app" / "experiment.toml")
    assert experiment.protect.threshold == 2
    assert read_limits(sealed.site("client-1")).accept.experiments == (digest(experiment),)
    assert wrong(sealed) == []
    said = [finding.text for finding in check.findings(sealed.folder)]
    assert "Sums are opened by 2 of 3 sites together; no site holds the key" in said
    assert "2 of the 3 sites together, and nobody alone" in (sealed.folder / "README.md").read_text()
    assert not list(sealed.folder.rglob("secret.json"))
    own = [finding.text for finding in check.findings(sealed.site("client-1"))]
    assert any(text.startswith("A share of the key: 2 of 3 sites open") for text in own)


def test_a_key_for_all_is_made_only_where_it_is_asked_for(tmp_path):
    common = make(tmp_path / "f", **ENCRYPTED | {"protect": ENCRYPTED["protect"] | {"threshold": 1}})
    assert wrong(common) == []
    said = [finding.text for finding in check.findings(common.folder)]
    assert "Sums are opened by one of 3 sites, by turns; each of them holds the whole key" in said
    assert len(list(common.folder.rglob("secret.json"))) == 3
    assert not list(common.folder.rglob("share.json"))
    assert "The server and any one site" in (common.folder / "README.md").read_text()


def test_a_missing_foreign_or_altered_share_is_found(sealed, tmp_path, monkeypatch):
    mine, other = (sealed.site(name) / "keys" / "share.json" for name in ("client-0", "client-1"))
    kept = mine.read_bytes()
    mine.unlink()
    assert any("client-0: " in text and "is missing" in text for text in wrong(sealed))
    assert any("is missing" in f.text for f in check.findings(sealed.site("client-0")) if f.wrong)
    shutil.copy(other, mine)
    assert any("is share 2, and client-0 has share 1" in text for text in wrong(sealed))
    mine.write_bytes(kept)
    share = keys.load_as(keys.Share, mine)
    keys.save_share(mine, replace(share, value=share.value + 1), force=True)
    assert any("does not hold share 1 of its key" in text for text in wrong(sealed))
    mine.write_bytes(kept)
    assert wrong(sealed) == []
    mine.chmod(0o644)
    assert any("can be read by others" in text for text in wrong(sealed))
    monkeypatch.setattr(key_files, "new_key", lambda experiment: safe_prime_key())
    again, place = make(tmp_path / "again", **ENCRYPTED), sealed.site("client-2") / "keys"
    shutil.copy(again.site("client-2") / "keys" / "share.json", place / "share.json")
    assert any("client-2: " in text and "is a share of another key" in text for text in wrong(sealed))
    for file in ("public.json", "verification.json"):
        shutil.copy(again.site("client-2") / "keys" / file, place / file)
    assert any("client-2: " in text and "keys of another federation" in text for text in wrong(sealed))


def test_a_whole_key_or_a_share_where_none_belongs_is_found(sealed):
    shutil.copy(sealed.site("client-0") / "keys" / "share.json", sealed.server / "keys" / "share.json")
    (sealed.site("client-1") / "keys" / "secret.json").write_text("{}")
    found = wrong(sealed)
    assert any("share.json belongs to a site: the server must not have it" in text for text in found)
    assert any("client-1: " in text and "is the whole key" in text for text in found)


@pytest.mark.parametrize(
    ("protect", "privacy", "sites", "words"),
    [
        ({"key": {"shape": "ordinary"}}, {}, "3", "Only safe-prime keys can be split"),
        ({"threshold": 2}, {}, "4", "threshold of 3 to 4 for 4 clients, got 2"),
        ({"threshold": 2}, {"colluding": 1}, "3", "threshold of 3 to 3 for 3 clients, got 2"),
        ({}, {}, "101", "set protect.threshold = 1"),
        ({"key": "secret.json"}, {}, "3", "leave out protect.key"),
    ],
)
def test_keys_that_could_not_keep_the_promise_are_not_made(tmp_path, protect, privacy, sites, words):
    changes = {"protect": ENCRYPTED["protect"] | protect, "privacy": ENCRYPTED["privacy"] | privacy}
    with pytest.raises(BadInput, match=words):
        make(tmp_path / "f", sites=sites, **changes)
    assert not (tmp_path / "f").exists()


def test_colluding_sites_raise_the_threshold(tmp_path, monkeypatch):
    monkeypatch.setattr(key_files, "new_key", lambda experiment: safe_prime_key())
    made = make(tmp_path / "f", **ENCRYPTED | {"privacy": ENCRYPTED["privacy"] | {"colluding": 1}})
    assert "Sums are opened by 3 of 3 sites together; no site holds the key" in [
        finding.text for finding in check.findings(made.folder)
    ]


def test_what_a_program_prints_can_be_read_where_a_notebook_forces_colours(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    code = "from rich.console import Console; Console().print_json('{\"runs\": []}')"
    assert json.loads(Processes(home=tmp_path).call([sys.executable, "-c", code], seconds=60)) == {"runs": []}


# central DP: what a deployment cannot keep secret, and what sites' budgets do not pay for

SECRET = {"privacy": {"kind": "central", "epsilon": 8.0, "clip": 0.5}, "train": {"rounds": 2, "clients_per_round": 1}}


def central(**privacy):
    return {**SECRET, "privacy": SECRET["privacy"] | privacy}


@pytest.mark.parametrize("changes", [SECRET, {"privacy": SECRET["privacy"] | {"adaptive_clip": {"quantile": 0.5}}}])
def test_a_deployment_does_not_promise_what_whoever_watches_its_network_breaks(tmp_path, changes):
    with pytest.raises(BadInput, match=r"whoever watches the network .*privacy\.sampler = \"cyclic\"") as said:
        make(tmp_path / "federation", sites="2", **changes)
    assert 'privacy.network = "unwatched"' in str(said.value)
    assert not (tmp_path / "federation").exists()


def test_secret_cohorts_are_deployed_on_the_word_that_nobody_watches_and_the_promise_names_who_would_break_it(tmp_path):
    made = make(tmp_path / "federation", sites="2", **central(network="unwatched"))
    assert wrong(made) == []
    experiment = tacit.Experiment.load(made.app / "tacit_app" / "experiment.toml")
    against = build(experiment).promise.adversary
    assert "neither the network's traffic nor the server's log, which show who took part in which round" in against


def test_where_every_site_is_in_every_round_nothing_is_secret_and_the_promise_says_so(tmp_path):
    made = make(tmp_path / "federation", sites="2", privacy=SECRET["privacy"])
    promise = build(tacit.Experiment.load(made.app / "tacit_app" / "experiment.toml")).promise
    assert promise.adversary == "everybody who sees the models and who took part in which round (the server is trusted)"
    assert promise.relation == "empty one client (its update is then zero)"
    with pytest.raises(BadInput, match="there are none: leave it out"):
        tacit.Experiment(privacy=SECRET["privacy"] | {"network": "unwatched"})


def test_a_federation_of_an_older_version_with_secret_cohorts_is_found_by_check(tmp_path, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr("tacit.deploy.operate.init.refuse_undeployable", lambda experiment: None)
        made = make(tmp_path / "federation", sites="2", **SECRET)
    for folder in (made.folder, made.site("client-0")):
        assert any("whoever watches the network" in finding.text for finding in check.findings(folder) if finding.wrong)


LOUD = {
    "privacy": {"kind": "central", "epsilon": 4.0, "noise_multiplier": 0.6, "sampler": "cyclic"},
    "train": {"rounds": 6, "clients_per_round": 1},
}


def test_a_schedule_that_a_sites_budget_does_not_pay_for_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(BudgetExhausted, match=r"client-0: The site's budget \(epsilon 4, .*\) pays for \d of 3 turns"):
        make(tmp_path / "federation", sites="2", **LOUD)
    assert not (tmp_path / "federation").exists()
    with pytest.raises(BudgetExhausted, match=r"pays for \d of 6 rounds, each of which every site pays for"):
        make(tmp_path / "federation", sites="2", privacy=LOUD["privacy"] | {"sampler": None}, train={"rounds": 6})


def test_a_budget_that_was_lowered_below_the_schedule_is_found_by_check_with_exit_code_2(tmp_path):
    made = make(tmp_path / "federation", sites="2", **LOUD | {"privacy": LOUD["privacy"] | {"epsilon": 400.0}})
    assert wrong(made) == []
    for name in made.sites:
        budget = made.site(name) / "budget.toml"
        budget.write_text(budget.read_text().replace("epsilon = 400.0", "epsilon = 4.0"))
    assert any("client-1: The site's budget (epsilon 4" in text and "of 3 turns" in text for text in wrong(made))
    done = CliRunner().invoke(app, ["deploy", "check", str(made.folder)])
    assert done.exit_code == 2
    assert "of 3 turns that the schedule gives it" in done.output
    assert any("of 3 turns" in finding.text for finding in check.findings(made.site("client-1")) if finding.wrong)


@pytest.fixture
def own_rule(tmp_path, monkeypatch):
    """A federation whose rule is a package of its own, which would leave a trace if it were imported; and the rule's file."""
    file, trace = tmp_path / "ours" / "own_hospital" / "rules.py", tmp_path / "imported"
    file.parent.mkdir(parents=True)
    file.write_text("from tacit.algorithms.rules.median import median as clipped_median\n", "utf-8")
    (file.parent / "__init__.py").write_text(f"open({str(trace)!r}, 'w').close()\n", "utf-8")
    monkeypatch.syspath_prepend(str(file.parents[1]))
    made = make(tmp_path / "federation", aggregate={"rule": "own_hospital.rules:clipped_median"})
    trace.unlink(missing_ok=True)
    yield made, file, trace
    forget()


def forget():
    """As in a process that has not imported the package."""
    for name in [name for name in sys.modules if name.startswith("own_hospital")]:
        del sys.modules[name]


def to_paste(file):
    return f'"own_hospital.rules:clipped_median" = "{hashlib.sha256(file.read_bytes()).hexdigest()}"'


def list_code(federation, line):
    for name in federation.sites:
        with (federation.site(name) / "budget.toml").open("a", encoding="utf-8") as budget:
            budget.write(f"\n[accept.code]\n{line}\n")


def test_check_prints_the_line_that_lists_a_sites_own_code_and_imports_nothing_for_it(own_rule):
    federation, file, trace = own_rule
    forget()
    found = wrong(federation)
    assert len(found) == 3
    assert "does not list in accept.code" in found[0]
    assert str(file) in found[0]
    assert found[0].endswith(f"{federation.site('client-0') / 'budget.toml'}: {to_paste(file)}")
    assert not trace.exists()
    list_code(federation, to_paste(file))
    assert wrong(federation) == []
    file.write_text(file.read_text() + "# changed\n")
    assert "is another than the one" in wrong(federation)[0]
    assert wrong(federation)[0].endswith(to_paste(file))


def test_listed_code_that_is_not_installed_is_said_to_be_that_and_not_another_file(own_rule, tmp_path):
    federation, file, _ = own_rule
    line = to_paste(file)
    file.parents[1].rename(tmp_path / "elsewhere")
    importlib.invalidate_caches()
    forget()
    assert "Not installed here: own_hospital.rules:clipped_median; a site does not search" in wrong(federation)[0]
    list_code(federation, line)
    for text in wrong(federation):
        assert "'own_hospital.rules:clipped_median', which the site's budget.toml lists" in text
        assert "is not installed here: a site does not search the current folder" in text
        assert "is another" not in text
    assert len(wrong(federation)) == 3


def test_a_line_to_paste_says_one_name_and_one_hash_whatever_the_experiment_says():
    for name in ('json:loads" = ""\n"os:system', "json:a b", "json.no_such:x", "no_such_package.a:x", "sys:exit"):
        assert lines_to_list({}, tacit.Experiment(aggregate={"rule": name})) == {}
    ((line, file),) = lines_to_list({}, tacit.Experiment(aggregate={"rule": "json.decoder:loads"})).items()
    assert line == f'"json.decoder:loads" = "{hashlib.sha256(file.read_bytes()).hexdigest()}"'
