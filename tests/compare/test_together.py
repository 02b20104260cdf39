"""What the runs of a comparison cost in total: in which sum a run is, and of whom it is said."""

import contextlib
import json
import math
from dataclasses import replace

import pytest
import ready

import tacit
from tacit.lab.compare import table
from tacit.lab.compare.grid import expand
from tacit.lab.compare.ledger import notes, totals
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
    first, second = totals(rows)
    assert (first.adversary, first.runs, first.epsilon) == ("who knows who took part", 1, 1.0)
    assert second.adversary.startswith("everybody who sees the models (the server is trusted")
    assert (second.relation, second.runs) == ("add or remove one client", 1)
    (killed / "clients.json").unlink()
    assert len(totals(rows)) == 1
    assert any("In no sum: 1 runs that did not end" in note for note in notes(rows))


def interrupted(record):
    raise InterruptedError


def test_rows_that_were_edited_between_two_runs_may_be_one_persons_in_both_and_are_added(made, tmp_path):
    rows = made({"privacy.epsilon": [1, 3], "seed.data": [0]}, seeds=1, unit=lambda number: "client")
    for row, known in zip(rows, ("of before", "of later"), strict=True):
        Ledger(row.runs[0].folder / "ledger.db", population=known, run="run").close()
    (sums,) = totals(rows)
    assert (sums.ways, sums.epsilon) == (1, pytest.approx(3.9998, abs=1e-3))
    never = [rows[0], replace(rows[1], runs=(replace(rows[1].runs[0], folder=tmp_path / "never", summary=None),))]
    assert [(one.ways, one.runs) for one in totals(never)] == [(1, 1)], "a run that never began is no way"


def test_a_sum_of_runs_with_malicious_clients_is_said_of_the_honest_alone(made):
    row = made({"privacy.epsilon": [1]})[0]
    whom = {"whom": "each of the 3 honest clients"}
    runs = tuple(replace(run, summary=run.summary | {"guarantee": run.guarantee | whom}) for run in row.runs)
    (sums,) = totals([replace(row, runs=runs)])
    assert sums.honest
    assert "with no client that is malicious in one of them" in sums.sentence
    assert "malicious" not in totals([row])[0].sentence


def test_a_sum_of_runs_that_a_client_opted_out_of_is_not_said_of_that_client(tmp_path):
    said = {"privacy.epsilon": [[1.0, 1.0, math.inf], [1.0, 1.0, 2.0]]}
    small = {
        "data": {"clients": 3, "examples_per_client": 40},
        "train": {"rounds": 1, "local_steps": 2, "batch_size": 10},
    }
    base = tacit.Experiment(**small, privacy={"kind": "local", "delta": 1e-3, "epsilon": 1.0}, run={"workers": 1})
    with ready.workers():
        rows = compare(base, said, seeds=1, out=tmp_path / "out", jobs=1)
    of_some, of_all = sorted(totals(rows), key=lambda one: one.epsilon)
    assert (of_some.runs, of_all.runs) == (1, 1)
    assert "with no client that is malicious in one of them or opted out of one" in of_some.sentence
    assert "opted out" not in of_all.sentence


def test_an_epsilon_without_bound_is_read_from_the_folder_of_a_run_and_ends_no_comparison(tmp_path):
    """JSON knows no infinity: a run's summary says null."""
    with ready.workers():
        (row,) = compare(LOUD, {}, seeds=2, out=tmp_path / "out", jobs=1)
    assert len(row.ended) == 2
    (sums,) = totals([row])
    assert math.isinf(sums.epsilon)
    assert "epsilon inf" in sums.sentence
    assert sums.record()["epsilon"] is None


APART, ALIKE = {"privacy.epsilon": [1, 3]}, {"privacy.epsilon": [1, 3], "seed.data": [0]}
SUMS = {  # what varies, per what each cell promises; of each sum: unit, runs, ways, epsilon, and its number on a page
    "of the client that spent most": (APART, ("record", "record"), [("record", 6, 1, 12, "12.000")]),
    "two units are not added": (
        ALIKE,
        ("record", "client"),
        [("record", 3, 1, 3, "3.000"), ("client", 3, 1, 9, "9.000")],
    ),
    "rows dealt out anew have no client in common": (
        APART,
        ("client", "client"),
        [("client", 6, 3, 4, "4.000, of one of 3 ways")],
    ),
    "other clients": (
        {"seed.data": [0], "data.clients": [4, 5]},
        ("client", "client"),
        [("client", 6, 2, 9, "9.000, of one of 2 ways")],
    ),
    "rows in the same hands": (ALIKE, ("client", "client"), [("client", 6, 1, 12, "12.000")]),
    "without privacy": ({"privacy.kind": ["local", "none"]}, ("record", None), [("record", 3, 1, 9, "9.000")]),
}


@pytest.mark.parametrize("why", SUMS)
def test_the_page_has_no_bare_number_where_nothing_adds_the_runs_up(made, tmp_path, why):
    """Per client and dealt out anew by every seed, the largest sum of one way is not what all runs cost."""
    vary, units, expected = SUMS[why]
    rows = made(vary, unit=lambda number: units[number])
    sums = totals(rows)
    assert [(one.unit, one.runs, one.ways, round(one.epsilon, 2), one.bare) for one in sums] == expected
    assert all(one.delta == pytest.approx(1e-5 * one.runs / one.ways) for one in sums)
    table.write(tmp_path, rows)
    written = json.loads((tmp_path / "total.json").read_text())
    assert [one["epsilon"] for one in written] == [one.epsilon for one in sums]
    said = " ".join(table.notes(rows))
    for one in sums:
        assert ("if those of one way, and no others, are seen" in one.sentence) == (one.ways > 1)
        assert f"epsilon {one.bare.partition(',')[0]} at delta" in one.sentence
        assert one.sentence in said
    assert ("more than any one" in said) == (len(sums) > 1)
    assert ("In no sum: 3 runs without privacy. Whoever sees one" in said) == (None in units)
