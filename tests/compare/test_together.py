"""What the runs of a comparison cost together: in which sum a run is, and of whom it is said."""

import contextlib
import math
from dataclasses import replace

import pytest
import ready

import tacit
from tacit.lab.compare.grid import expand
from tacit.lab.compare.ledger import notes, together
from tacit.lab.compare.results import Row, Run
from tacit.lab.grid import compare
from tacit.privacy.ledger.ledger import Ledger

CENTRAL = {
    "data": {"clients": 12, "examples_per_client": 20},
    "seed": {"data": 0},
    "train": {"rounds": 2, "local_steps": 1, "batch_size": 10},
    "privacy": {"kind": "central", "epsilon": 8.0, "noise_multiplier": 2.0},
    "run": {"workers": 1},
}
LOUD = {
    "data": {"clients": 3, "examples_per_client": 40},
    "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": math.inf, "noise_multiplier": 1e-200},
}


def test_a_run_that_did_not_end_is_in_the_sum_of_what_it_promised_and_not_of_what_another_did(tmp_path):
    """Secret cohorts cost less, and nothing against whoever knows who took part: that is the other cell's promise."""
    (secret,) = expand(CENTRAL, {"train.clients_per_round": [4]}, seeds=1)
    (everybody,) = expand(CENTRAL, {}, seeds=1)
    seen = {"unit": "client", "relation": "empty one client", "adversary": "who knows who took part", "delta": 1e-5}
    summary = {"guarantee": seen | {"epsilon": {"min": 1.0, "median": 1.0, "max": 1.0}}, "metric": "accuracy"}
    ended = Row(everybody, (Run(0, tmp_path / "runs" / "a" / "seed-0", summary, ()),))
    killed = tmp_path / "runs" / "b" / "seed-0"
    with contextlib.suppress(InterruptedError):
        tacit.run(secret.experiments[0], out=killed, observe=interrupted, page=False)
    rows = [ended, Row(secret, (Run(0, killed, None, (), "stopped"),))]
    first, second = together(rows)
    assert (first.adversary, first.runs, first.epsilon) == ("who knows who took part", 1, 1.0)
    assert second.adversary.startswith("everybody who sees the models (the server is trusted")
    assert (second.relation, second.runs) == ("add or remove one client", 1)
    (killed / "clients.json").unlink()
    assert len(together(rows)) == 1
    assert any("In no sum: 1 runs that did not end" in note for note in notes(rows))


def interrupted(record):
    raise InterruptedError


def test_rows_that_were_edited_between_two_runs_may_be_one_persons_in_both_and_are_added(made, tmp_path):
    rows = made({"privacy.epsilon": [1, 3], "seed.data": [0]}, seeds=1, unit=lambda number: "client")
    for row, known in zip(rows, ("of before", "of later"), strict=True):
        Ledger(row.runs[0].folder / "ledger.db", population=known, run="run").close()
    (sums,) = together(rows)
    assert (sums.ways, sums.epsilon) == (1, pytest.approx(3.9998, abs=1e-3))
    never = [rows[0], replace(rows[1], runs=(replace(rows[1].runs[0], folder=tmp_path / "never", summary=None),))]
    assert [(one.ways, one.runs) for one in together(never)] == [(1, 1)], "a run that never began is no way"


def test_a_sum_of_runs_with_malicious_clients_is_said_of_the_honest_alone(made):
    row = made({"privacy.epsilon": [1]})[0]
    whom = {"whom": "each of the 3 honest clients"}
    runs = tuple(replace(run, summary=run.summary | {"guarantee": run.guarantee | whom}) for run in row.runs)
    (sums,) = together([replace(row, runs=runs)])
    assert sums.honest
    assert "with no client that is malicious in one of them" in sums.sentence
    assert "malicious" not in together([row])[0].sentence


def test_an_epsilon_without_bound_is_read_from_the_folder_of_a_run_and_ends_no_comparison(tmp_path):
    """JSON knows no infinity: a run's summary says null."""
    with ready.workers():
        (row,) = compare(LOUD, {}, seeds=2, out=tmp_path / "out", jobs=1)
    assert len(row.ended) == 2
    (sums,) = together([row])
    assert math.isinf(sums.epsilon)


def test_the_page_has_no_bare_number_where_nothing_adds_the_runs_up(made):
    """Per client and dealt out anew by every seed, the largest sum of one way is not what all runs cost."""
    rows = made({"privacy.epsilon": [1]}, unit=lambda number: "client")
    (sums,) = together(rows)
    assert sums.bare == "1.000, of one of 3 ways"
    (sums,) = together(made({"privacy.epsilon": [1], "seed.data": [0]}, unit=lambda number: "client"))
    assert sums.bare == "3.000"
