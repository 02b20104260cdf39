import json
import logging
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from federation.flower.conftest import Line, lost
from flwr.app import Context, RecordDict
from flwr.supercore.logger import log
from trained import same_model

import tacit
from tacit.deploy.server import gather, registration, server, trainer
from tacit.deploy.server.messages import refusal
from tacit.engine import evaluate as rounds_module
from tacit.engine import loop as loop_module
from tacit.engine.run_folder import CHECKPOINT
from tacit.errors import BadInput, Refusal, RunExists, TacitError


def charges(site):
    with sqlite3.connect(site / "ledger.db") as book:
        return book.execute("SELECT round, client FROM charges ORDER BY round").fetchall()


class Stop(Exception):
    pass


def stop_after(round):
    def observe(record):
        if record["round"] == round:
            raise Stop

    return observe


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregate": {"rule": "pfa"}},
        {"aggregate": {"rule": "pfa-plus"}, "privacy": {"epsilon": [1.0, 1.1, 9.0]}},
        {"privacy": {"strategy": "same-noise", "noise_multiplier": 3.0}},
        {"privacy": {"kind": "none", "epsilon": None}},
        {"privacy": {"kind": "central", "epsilon": 4.0}},
        {
            "privacy": {"kind": "central", "epsilon": 8.0, "network": "unwatched"},
            "train": {"clients_per_round": 2, "rounds": 5},
        },
        {
            "privacy": {"kind": "central", "epsilon": [8.0, 1.0, 20.0], "network": "unwatched"},
            "train": {"rounds": 5},
        },
        {
            "privacy": {"kind": "central", "epsilon": 8.0, "sampler": "cyclic"},
            "train": {"clients_per_round": 1, "rounds": 5},
        },
        {"privacy": {"kind": "local", "unit": "client", "epsilon": 20.0}},
        {"model": {"name": "mlp"}, "data": {"partition": "dirichlet", "examples_per_client": None}},
    ],
)
def test_from_the_same_seed_a_deployment_reaches_the_simulators_model_bit_for_bit(federation, tmp_path, changes):
    deployed = federation(**changes)
    simulated = tacit.run(deployed.experiment, out=tmp_path / "simulated")
    history = deployed.run()
    assert same_model(tmp_path / "simulated", history.out)
    for key in ("test_accuracy", "rounds", "stopped", "uplink_bytes", "downlink_bytes", "guarantee"):
        assert history.summary[key] == simulated.summary[key]


def test_every_site_is_charged_on_its_own_disk_for_every_round_and_sends_nothing_private_but_its_update(federation):
    deployed = federation()
    history = deployed.run()
    assert {(record["train_loss"], record["clipped"]) for record in history.rounds} == {(None, None)}
    for index, name in enumerate(deployed.names):
        assert charges(deployed.site(index)) == [(0, name), (1, name), (2, name)]
    told = history.summary["sites"]["epsilon"]
    assert [limit * 0.98 < told[name] <= limit for name, limit in zip(deployed.names, (1, 2, 8), strict=True)] == [
        True
    ] * 3


CYCLE = {
    "privacy": {"kind": "central", "epsilon": 8.0, "sampler": "cyclic"},
    "train": {"clients_per_round": 1, "rounds": 7},
}


@pytest.mark.parametrize("randomness", ["seeded", "os"])
@pytest.mark.parametrize(("changes", "stopped", "rounds"), [({}, 1, 3), (CYCLE, 3, 7)], ids=["all", "public cohorts"])
def test_a_resumed_deployment_goes_on_with_its_noise_and_charges_no_round_twice(
    federation, tmp_path, randomness, changes, stopped, rounds
):
    deployed = federation(**changes, run={"randomness": randomness})
    with pytest.raises(Stop):
        deployed.run(observe=stop_after(stopped))
    history = deployed.run(resume=True)
    assert history.summary["rounds"] == rounds
    paid = [[round for round, _ in charges(deployed.site(index))] for index in range(3)]
    assert sorted(round for own in paid for round in own) == sorted(list(range(rounds)) * (1 if changes else 3))
    assert not changes or all({round % 3 for round in own} != {0, 1, 2} for own in paid)  # in its turn alone
    assert stat.S_IMODE((history.out / CHECKPOINT).stat().st_mode) == 0o600
    if randomness == "seeded":
        tacit.run(deployed.experiment, out=tmp_path / "whole")
        assert same_model(tmp_path / "whole", history.out)


@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_a_server_that_dies_before_aggregating_gets_the_same_answers_again_for_nothing(
    federation, monkeypatch, randomness
):
    deployed = federation(run={"randomness": randomness})
    real, seen = rounds_module.receive, []

    def dying(raw, *, round):
        seen.append((round, raw))
        if round == 1 and len(seen) == 5:
            raise Stop
        return real(raw, round=round)

    monkeypatch.setattr(rounds_module, "receive", dying)
    with pytest.raises(Stop):
        deployed.run()
    first = [raw for round, raw in seen if round == 1]
    seen.clear()
    monkeypatch.setattr(
        rounds_module, "receive", lambda raw, *, round: (seen.append((round, raw)), real(raw, round=round))[1]
    )
    deployed.run(resume=True)
    assert [raw for round, raw in seen if round == 1][: len(first)] == first
    assert [round for round, _ in charges(deployed.site(2))] == [0, 1, 2]


def test_a_site_that_did_not_join_is_named(federation):
    deployed = federation()
    with pytest.raises(TacitError, match=r"1 of 4 sites did not join \(north\)"):
        deployed.run(sites=(*deployed.names, "north"), join_seconds=0.4)


def test_two_nodes_with_one_name_are_refused(federation):
    deployed = federation()
    (deployed.site(1) / "site.toml").write_text('name = "client-0"\n')
    with pytest.raises(TacitError, match="Two nodes call themselves client-0"):
        deployed.run()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tacit": "9.9"}, "Site client-1 runs Tacit 9.9, the server .*: install the same"),
        ({"shape": [3]}, r"Site client-1 has rows of shape \[3\] in 10 classes; the experiment has \[1, 8, 8\] in 10"),
        ({"classes": 2}, "Site client-1 has rows of shape .* in 2 classes"),
        ({"site": "stranger"}, "A node calls itself stranger, which is none of the sites"),
    ],
)
def test_a_site_that_does_not_fit_is_refused_by_name(federation, change, words):
    deployed = federation()

    def retold(ask, node, reply):
        head = reply.content["tacit"]
        if node == 2:
            head["json"] = json.dumps(json.loads(head["json"]) | change)
        return reply

    with pytest.raises(TacitError, match=words):
        deployed.run(deployed.grid(change=retold))


def test_a_round_with_too_few_answers_stops_the_run_with_the_reason_and_resumes(federation, tmp_path):
    deployed = federation(train={"min_clients": 3})
    grid = deployed.grid(change=lost((2, 1)))
    with pytest.raises(
        TacitError, match=r"Round 2 got 2 answers and needs 3 \(client-1: did not answer in 0.2 s\).*--resume"
    ):
        deployed.run(grid, round_seconds=0.2)
    assert json.loads((tmp_path / "out" / "status.json").read_text())["state"] == "failed"
    history = deployed.run(resume=True)
    tacit.run(deployed.experiment, out=tmp_path / "whole")
    assert same_model(tmp_path / "whole", history.out)


def test_the_run_ends_by_budget_where_the_sites_cannot_pay(federation):
    deployed = federation(privacy={"strategy": "same-noise", "noise_multiplier": 0.3})
    history = deployed.run()
    assert (history.summary["stopped"], history.summary["rounds"]) == ("budget", 0)
    assert charges(deployed.site(0)) == []


def test_sites_that_have_spent_their_budgets_do_not_agree_to_another_run(federation):
    deployed = federation()
    deployed.run()
    with pytest.raises(TacitError, match=r"Site client-0 does not agree to the run: The site's budget .* is used up"):
        deployed.run(out=deployed.folder / "second")
    assert [round for round, _ in charges(deployed.site(0))] == [0, 1, 2]


def test_a_central_run_that_is_resumed_pays_for_the_round_it_repeats_with_new_noise(federation, monkeypatch):
    deployed = federation(
        privacy={"kind": "central", "epsilon": 50.0, "noise_multiplier": 1.0}, run={"randomness": "os"}
    )
    calls = []

    def dying(parts, params):
        calls.append(1)
        if len(calls) == 2:  # after round 1
            raise Stop
        return lambda: {"accuracy": 0.5, "loss": 0.5}

    monkeypatch.setattr(loop_module, "evaluating", dying)
    with pytest.raises(Stop):
        deployed.run()
    history = deployed.run(resume=True)
    assert history.summary["rounds"] == 3
    assert len(charges(deployed.site(0))) == 4
    assert len(list(history.ledger.entries())) == 4


def test_a_run_is_resumed_while_the_server_before_it_is_on_its_way_out(federation):
    deployed = federation()
    with pytest.raises(Stop):
        deployed.run(observe=stop_after(0))
    lock = deployed.folder / "out" / ".lock"
    leaving = f"import fcntl, sys; f=open({str(lock)!r}, 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", leaving], **pipes) as before:
        before.stdout.readline()
        with pytest.raises(RunExists, match="Another process is running"):
            deployed.run(force=True)
        leaves = threading.Timer(0.5, before.stdin.close)
        leaves.start()
        assert deployed.run(resume=True).summary["rounds"] == 3
        leaves.join()


def test_a_question_that_was_lost_is_asked_again_before_half_the_time_is_over(federation, monkeypatch):
    deployed = federation(train={"rounds": 1})
    grid = deployed.grid(change=lambda ask, node, reply: reply if len(grid.asked) >= 3 else None)
    monkeypatch.setattr(registration, "AGAIN_SECONDS", 0.3)
    deployed.run(grid, join_seconds=3600)  # half of that would outlast any test run
    assert [ask["kind"] for ask, _ in grid.asked[:6]] == ["hello"] * 6


def test_a_site_that_was_away_when_a_run_was_resumed_is_let_in_before_the_next_round(federation, monkeypatch, capsys):
    deployed = federation(train={"rounds": 5})
    with pytest.raises(Stop):
        deployed.run(observe=stop_after(0))
    seen, grid = [], deployed.grid(gone=(2,))

    def comes_back(record):
        seen.append(record["answered"])
        grid.gone = () if record["round"] == 2 else grid.gone

    deployed.run(grid, resume=True, join_seconds=0.4, observe=comes_back)
    assert seen == [2, 2, 3, 3]
    assert "client-1 is here again" in capsys.readouterr().out
    assert [round for round, _ in charges(deployed.site(1))] == [0, 3, 4]


def test_a_site_is_not_let_in_under_the_name_of_another_that_is_away(federation, capsys):
    deployed = federation(train={"rounds": 4})
    with pytest.raises(Stop):
        deployed.run(observe=stop_after(0))
    for place in (deployed.site(1), deployed.site(2)):  # the third comes as the second, which is away
        (place / "site.toml").write_text('name = "client-1"\n')
    grid = Line([deployed.site(0), deployed.site(2)], gone=(2,))

    def comes(record):
        grid.gone = ()

    history = deployed.run(grid, resume=True, join_seconds=0.4, observe=comes)
    assert [record["answered"] for record in history.rounds][1:] == [1, 1, 1]
    assert "The node that was registered as client-2 calls itself client-1" in capsys.readouterr().out


def test_two_sites_that_swapped_their_names_are_refused(federation):
    deployed = federation()
    for index, name in ((0, "client-1"), (1, "client-0")):
        (deployed.site(index) / "site.toml").write_text(f'name = "{name}"\n')
    with pytest.raises(TacitError, match="The node that was registered as client-0 calls itself client-1"):
        deployed.run()


def test_a_question_that_was_lost_with_its_site_is_asked_again_as_soon_as_the_site_is_back(federation, monkeypatch):
    class Restarted(Line):
        looks = 0

        def get_node_ids(self):
            self.looks -= 1
            return [node for node in super().get_node_ids() if node != 2 or self.looks < 0]

    def goes(ask, node, reply):  # it loses its first question of a round, goes, and is back a little later
        if node != 2 or ask["kind"] != "train" or lost:
            return reply
        grid.looks = 3
        return lost.append(ask)

    monkeypatch.setattr(gather, "LOOK_SECONDS", 0.05)
    deployed, lost = federation(train={"rounds": 1}), []
    grid = deployed.grid(Restarted, change=goes)
    history = deployed.run(grid, round_seconds=3600)  # the next turn would be after half a minute
    assert lost
    assert [record["answered"] for record in history.rounds] == [3]


def test_the_silent_are_asked_again_ever_more_seldom(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gather.time, "monotonic", lambda: now[0])

    class Here:
        def get_node_ids(self):
            return [7]

    turns, asked = gather.Turns(Here(), 30.0), []  # type: ignore[arg-type]
    for _ in range(600):
        asked += [now[0]] if turns.due([7]) else []
        now[0] += 1.0
    assert asked == [0, 30, 90, 210, 450]


@pytest.mark.parametrize("sealed", [False, True])
def test_everything_in_a_servers_results_is_named_in_the_threat_model_and_no_update_is_there(federation, sealed):
    """The page said that a server holds no ledger; it holds an account of its own run, beside what the sites declared."""
    paillier = {"kind": "distributed", "epsilon": 50.0, "clip": 1.0}
    bits = {"kind": "paillier", "key": {"bits": 2048}, "threshold": 1}
    changes = (
        {"privacy": paillier, "protect": bits}
        if sealed
        else {"data": {"held_out": 0.25}, "privacy": {"stats": ["label"]}}
    )
    deployed = federation(**changes, train={"rounds": 2})
    seen = []
    deployed.run(observe=lambda record: seen.append({path.name for path in (deployed.folder / "out").iterdir()}))
    held = {*seen[-1], *(path.name for path in (deployed.folder / "out").iterdir())} - {".lock", ".ledger.mark.lock"}
    page = (Path(__file__).parents[3] / "docs" / "threat-model.md").read_text("utf-8")
    table = page.partition("## Who holds what")[2].partition("\n## ")[0]
    for name in held:
        assert re.sub(r"asked-to-open-\w+", "asked-to-open-GROUP", name) in table
    assert {"ledger.db", "ledger.mark", "sites.json", "clients.json", "asked.bin"} <= held
    assert sealed == any(name.startswith("asked-to-open-") for name in held)
    assert sealed or {"asked-evaluation.bin", "asked-stats.bin", "queries.json", "stats.json"} <= held
    assert not any(name.endswith(".answer") for name in held)


def test_every_round_names_who_was_asked_and_did_not_answer_or_refused_and_why(federation):
    deployed = federation(train={"min_clients": 1})
    grid = deployed.grid(change=lost((2, 1)))

    def withdraw(record):
        deployed.edit(2, "most_rounds = 3", "most_rounds = 1")

    history = deployed.run(grid, round_seconds=0.2, observe=withdraw)
    absent = [record["absent"] for record in history.rounds]
    assert absent[0] == {}
    assert absent[1]["client-1"] == "did not answer in 0.2 s"
    assert absent[1]["client-2"] == absent[2]["client-2"] == "The server asks for 3 rounds; the site allows 1."
    assert list(absent[2]) == ["client-2"]
    assert [record["answered"] for record in history.rounds] == [3, 1, 2]
    assert [round for round, _ in charges(deployed.site(1))] == [0, 1, 2]  # of a silent one the charge is spent


def test_a_site_that_has_left_is_asked_and_charged_nothing_until_it_is_back(federation):
    deployed = federation(train={"rounds": 5, "min_clients": 2})
    grid = deployed.grid(Line)

    def observe(record):
        grid.gone = (2,) if record["round"] < 3 else ()

    history = deployed.run(grid, round_seconds=0.2, observe=observe)
    assert [(record["answered"], record["cohort"]) for record in history.rounds] == [
        (3, 3), (2, 3), (2, 2), (2, 2), (3, 3),
    ]  # fmt: skip
    assert history.rounds[2]["absent"] == {"client-1": "is not connected"}
    assert [round for round, name in charges(history.out) if name == "client-1"] == [0, 1, 4]
    assert [round for round, _ in charges(deployed.site(1))] == [0, 4]
    assert [round for round, name in charges(history.out) if name == "client-0"] == [0, 1, 2, 3, 4]


def test_a_site_whose_own_ledger_is_spent_counts_as_out_of_budget_and_is_charged_no_more(federation):
    deployed = federation(train={"rounds": 4})
    grid = deployed.grid(Line)

    def cannot_pay(message):
        return lambda asked: refusal("the budget is used up", to=asked, kind=Refusal.UNPAID)

    def observe(record):
        grid.see = lambda message: cannot_pay(message) if message.metadata.dst_node_id == 2 else None

    history = deployed.run(grid, observe=observe)
    assert [round for round, name in charges(history.out) if name == "client-1"] == [0, 1]
    assert history.rounds[1]["absent"] == {"client-1": "the budget is used up"}
    assert [record["out_of_budget"] for record in history.rounds] == [0, 0, 1, 1]
    assert history.rounds[2]["dropped"] == ["client-1"]


def test_a_run_whose_sites_have_left_stops_by_name_and_charges_nobody(federation):
    deployed = federation(train={"min_clients": 2})
    grid = deployed.grid(Line)

    def observe(record):
        grid.gone = (2,) if record["round"] == 0 else (1, 2)

    with pytest.raises(TacitError, match=r"Round 3 got 1 answers and needs 2 \(client-0: did not"):
        deployed.run(grid, round_seconds=0.2, observe=observe)
    with pytest.raises(TacitError, match="2 of 3 sites did not join"):
        deployed.run(grid, resume=True, round_seconds=0.2, join_seconds=0.2)
    history = deployed.run(resume=True)
    assert [round for round, name in charges(history.out) if name == "client-1"] == [0, 1, 2]


def test_a_server_that_flower_ends_leaves_no_word_that_is_taken_for_its_successors(federation, tmp_path):
    deployed = federation()

    def end(record):
        sys.exit(0)

    with pytest.raises(SystemExit):
        deployed.run(observe=end)
    assert json.loads((tmp_path / "out" / "status.json").read_text())["state"] == "running"


def flwr_run(deployed, monkeypatch, **config):
    """What Flower's ServerApp process does with Tacit's: run it, and log what it raises with its traceback."""
    monkeypatch.setattr(server, "end_with_parent", lambda: None)
    config = {"sites": ",".join(deployed.names), "out": str(deployed.folder / "out"), "keys": "keys"} | config
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    try:
        server.server_app(deployed.experiment)(deployed.grid(), context)
    except Exception as error:  # noqa: BLE001 - as run_serverapp.py has it
        log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=error)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "The run stopped: .* already holds a run: .*--run-config 'resume=true'"),
        ({"force": "yes"}, "The run stopped: `force` of the run config is 'yes': expected true or false."),
        ({"resume": True, "force": True}, "The run stopped: `resume` goes on with a run and `force` starts a new one"),
        ({"join-seconds": "soon"}, "The run stopped: `join-seconds` of the run config is 'soon'"),
        ({"sites": 3}, "The run stopped: `sites` of the run config is not a printable text"),
        ({"out": ""}, "The run stopped: Nothing says where the federation lies"),
    ],
)
def test_a_run_that_flwr_run_starts_and_tacit_refuses_ends_as_one_sentence(
    federation, monkeypatch, capfd, caplog, config, words
):
    deployed = federation(train={"rounds": 1})
    deployed.run()
    capfd.readouterr()
    flwr_run(deployed, monkeypatch, **config)
    said = "".join(capfd.readouterr())
    assert re.search(words, said)
    assert said.count("\n") == 1
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_an_error_that_is_no_refusal_keeps_its_traceback(federation, monkeypatch, caplog):
    def broken(*arguments):
        raise ZeroDivisionError("no such thing")

    deployed = federation()
    monkeypatch.setattr(server, "serve", broken)
    flwr_run(deployed, monkeypatch)
    assert "ZeroDivisionError: no such thing" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{}\nbody", b"[" * 100_000, b"\xff\xfe\n", b"3\nbody"])
def test_a_kept_question_that_was_damaged_between_two_starts_stops_the_server_in_one_sentence(tmp_path, content):
    (tmp_path / "asked.bin").write_bytes(content)
    with pytest.raises(BadInput, match=r"asked\.bin is damaged, and sites .* put it back"):
        trainer.find(SimpleNamespace(path=tmp_path), "asked.bin", 0)
