"""A site that audits itself: canaries in its own replies, which no server knows of or decides about."""

import json

import pytest
from redteam.lying_server import RUN, Server, experiment
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.errors import BadInput, Refused
from tacit.lab.audit.run import audit_site
from tacit.privacy.local import SampledGaussian
from tacit.types import Private

DOUBT = 1e-6


def server_of(folder, canaries=300, **changes):
    """A server of a site that plants canaries, and has agreed."""
    server = Server(folder / "site", experiment(**changes))
    settings = folder / "site" / "site.toml"
    settings.write_text(settings.read_text() + f"canaries = {canaries}\n")
    server.restart()
    return server


def trained(server, rounds=3):
    server.agree()
    return [server.train(round=r) for r in range(rounds)]


def test_a_site_audits_what_it_released_and_clean_code_is_not_accused(tmp_path):
    server = server_of(tmp_path)
    assert all(len(raw) for raw in trained(server))
    assert server.charges() == [0, 1, 2]
    report = audit_site(tmp_path / "site", level=DOUBT)
    (group,) = report.groups
    assert not report.alarming
    assert (group.clients, group.canaries) == (1, 300)
    assert group.measured.multiplier_limits[0] < group.measured.multiplier
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "site")])
    assert done.exit_code in (0, 3), done.output  # by chance one honest run in twenty is accused
    assert "promised" in done.output


def test_a_site_that_adds_too_little_noise_finds_out(tmp_path, monkeypatch):
    whole = SampledGaussian.noise

    def less(self, state, stream, bounded):
        state, noised = whole(self, state, stream, bounded)
        return state, Private(bounded.vector + 0.1 * (noised.vector - bounded.vector), noised.noise_std)

    monkeypatch.setattr(SampledGaussian, "noise", less)
    trained(server_of(tmp_path))
    assert audit_site(tmp_path / "site", level=DOUBT).alarming


def test_its_coins_are_committed_to_before_the_first_answer_and_are_the_same_after_a_restart(tmp_path):
    server = server_of(tmp_path)
    server.agree()
    server.train(round=0)
    file = tmp_path / "site" / "runs" / RUN / "canaries.json"
    first = file.read_bytes()
    server.restart()
    server.train(round=1)
    assert file.read_bytes() == first
    for secret in (tmp_path / "site" / "canaries.secret", file, *(file.parent / "canaries").glob("*")):
        assert secret.stat().st_mode & 0o077 == 0


def test_a_question_that_comes_again_gets_the_kept_answer_and_no_second_trace(tmp_path):
    server = server_of(tmp_path)
    server.agree()
    body = server.body()
    assert server.train(round=0, body=body) == server.train(round=0, body=body)
    assert len(list((tmp_path / "site" / "runs" / RUN / "canaries").iterdir())) == 1
    assert server.charges() == [0]


def test_coins_that_were_changed_afterwards_are_refused(tmp_path):
    trained(server_of(tmp_path), rounds=1)
    file = tmp_path / "site" / "runs" / RUN / "canaries.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"count": 200}))
    with pytest.raises(BadInput, match="not those that were committed to"):
        audit_site(tmp_path / "site")


@pytest.mark.parametrize("count", ["1", "true", '"many"', "651", "-3"])
def test_a_number_of_canaries_that_is_none_is_the_sites_own_mistake(tmp_path, count):
    server = server_of(tmp_path, canaries=count)
    with pytest.raises(Refused, match=r"log\.jsonl"):
        server.agree()
    assert "canaries in site.toml" in server.log()[-1]["text"]
    assert server.charges() == []


def test_no_server_plants_canaries_at_a_site(tmp_path):
    with pytest.raises(BadInput, match=r"Set canaries = 500 in its site\.toml .*tacit audit EXPERIMENT"):
        audit_site(Server(tmp_path / "without", experiment()).folder)
    server = Server(tmp_path / "site", experiment(audit={"canaries": 100}))
    with pytest.raises(Refused, match="audits itself"):
        server.agree()
