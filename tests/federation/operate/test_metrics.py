"""What a server and a site say to Prometheus."""

import json
import re
import stat

import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.deploy.operate import metrics
from tacit.deploy.operate.init import init
from tacit.deploy.site.layout import LEDGER, LOG
from tacit.errors import BadInput

LINE = re.compile(r'[a-z_]+\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\} (?:-?[0-9.e+-]+|[+-]Inf|NaN)')


@pytest.fixture
def federation(tmp_path):
    values = {"data": {"clients": 20}, "train": {"rounds": 2}, "privacy": {"kind": "local", "epsilon": 1.5}}
    experiment = tacit.Experiment(name='a "quoted" one', **values)
    return init(tmp_path / "f", sites="2", experiment=experiment, host="127.0.0.1", port=8443)


def samples(text):
    """{name{labels}: number}; every line is one that Prometheus reads, and no sample is there twice."""
    lines = [line for line in text.removesuffix("\n").split("\n") if not line.startswith("# TYPE ")]
    assert all(LINE.fullmatch(line) for line in lines), text
    found = dict(line.rsplit(" ", 1) for line in lines)
    assert len(found) == len(lines)
    return {name: float(value) for name, value in found.items()}


def test_a_site_says_its_limits_what_is_sealed_and_how_its_messages_went(federation):
    folder = federation.site("client-1")
    verdicts = [{"verdict": "answered"}] * 3 + [{"verdict": "refused"}, {"verdict": "no such"}, ["odd"]]
    (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in verdicts) + "half a li", "utf-8")
    found = samples(metrics.text_of(folder))
    site = '{site="client-1"}'
    assert found[f"tacit_epsilon_limit_per_record{site}"] == 1.5
    assert found['tacit_messages{site="client-1",verdict="answered"}'] == 3
    assert found['tacit_messages{site="client-1",verdict="refused"}'] == 1
    assert found[f"tacit_certificate_days_left{site}"] > 300
    assert not any("sealed" in name for name in found)  # nothing was sealed yet


def test_what_a_ledger_has_sealed_is_told_and_neither_rows_nor_times_are(federation, tmp_path):
    run = tacit.run(
        tacit.Experiment(
            data={"clients": 1, "examples_per_client": 60},
            train={"rounds": 1, "local_steps": 1},
            privacy={"kind": "local", "epsilon": 1.5},
        ),
        out=tmp_path / "run",
        page=False,
    )
    folder = federation.site("client-0")
    (folder / LEDGER).write_bytes((run.out / "ledger.db").read_bytes())
    found = samples(metrics.text_of(folder))
    assert 0 < found['tacit_epsilon_sealed_per_record{site="client-0"}'] <= 1.5
    assert found['tacit_delta_sealed_per_record{site="client-0"}'] == 1e-5
    assert not [name for name in found if re.search("row|record{|example|second|time|loss", name.partition("{")[0])]


def test_a_server_says_how_far_its_run_is_and_who_was_away(federation):
    named = r'federation="a \"quoted\" one"'
    assert samples(metrics.text_of(federation.folder))[f"tacit_sites{{{named}}}"] == 2
    experiment = tacit.Experiment.load(federation.app / "tacit_app" / "experiment.toml")
    _results(federation, experiment)
    found = samples(metrics.text_of(federation.folder))
    assert (found[f"tacit_rounds{{{named}}}"], found[f"tacit_rounds_planned{{{named}}}"]) == (1, 2)
    assert found[f"tacit_epsilon_per_record_loosest{{{named}}}"] == 0.75
    assert found[f'tacit_site_absent{{{named},site="client-1"}}'] == 1
    assert found[f'tacit_site_absent{{{named},site="client-0"}}'] == 0


def test_under_central_dp_with_secret_cohorts_nothing_says_who_or_how_many_took_part(federation):
    values = {"data": {"clients": 20}, "privacy": {"kind": "central", "epsilon": 8.0}}
    _results(federation, tacit.Experiment(**values, train={"rounds": 2, "clients_per_round": 5}))
    said = metrics.text_of(federation.folder)
    assert "tacit_epsilon_per_client_loosest" in said
    assert not re.search("cohort|answered|absent|bytes", said)


def _results(federation, experiment, **more):
    record = {"round": 0, "accuracy": 0.5, "loss": 1.0, "cohort": 2, "answered": 1, "epsilon_loosest": 0.75}
    record |= {"epsilon_tightest": 0.5, "uplink_bytes": 10, "downlink_bytes": 10, "out_of_budget": 0, "seconds": 1.0}
    record |= {"absent": {"client-1": "did not answer"}, "dropped": [], "train_loss": None, "clipped": None} | more
    federation.results.mkdir()
    (federation.results / "experiment.toml").write_text(experiment.toml(), "utf-8")
    (federation.results / "run.json").write_text(json.dumps({"run": "a" * 32}), "utf-8")
    (federation.results / "rounds.jsonl").write_text(json.dumps(record) + "\n", "utf-8")


def test_the_command_prints_or_writes_a_file_for_its_owner_alone(federation, tmp_path):
    site = federation.site("client-0")
    printed = CliRunner().invoke(app, ["deploy", "check", str(site), "--metrics", "-"])
    assert printed.exit_code == 0, printed.output
    out = tmp_path / "site.prom"
    assert CliRunner().invoke(app, ["deploy", "check", str(site), "--metrics", str(out)]).exit_code == 0
    assert samples(out.read_text("utf-8")) == samples(printed.output)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with pytest.raises(BadInput, match="holds no federation"):
        metrics.text_of(tmp_path)


def test_a_name_with_any_sign_is_one_label_that_prometheus_reads_and_a_number_that_is_none_stops_nothing(tmp_path):
    odd = 'tab\t cr\r vt\x0b nl\n ls\u2028 "} 9\ntacit_epsilon 0'
    values = {"data": {"clients": 20}, "train": {"rounds": 2}, "privacy": {"kind": "local", "epsilon": 1.5}}
    experiment = tacit.Experiment(name=odd, **values)
    made = init(tmp_path / "f", sites="2", experiment=experiment, host="127.0.0.1", port=8443)
    _results(made, experiment, update_norm=float("nan"))
    found = samples(metrics.text_of(made.folder))
    assert [name for name in found if name.startswith("tacit_update_norm")]
    assert not [name for name in found if name.startswith("tacit_epsilon{")]
