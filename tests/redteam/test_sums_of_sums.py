"""Two releases of one ledger whose sums differ at one client alone: what the others drew for one is not drawn for the other."""

import numpy as np
import pytest
import ready
import torch
from redteam.careless_researcher import Researcher, correlation, natural_rows
from safetensors.torch import load_file

import tacit
from tacit.algorithms import record_sums
from tacit.algorithms.central_dp import CentralDP
from tacit.engine.assemble import build
from tacit.engine.run_folder import CHECKPOINT
from tacit.lab.grid import compare

CLIENTS, SHARED = (
    8,
    0.2,
)  # a sum whose other shares are the same correlates by 7/8; 16 standard deviations of 6,602 numbers
SUMS = pytest.mark.parametrize("unit", ["client", "record"])


@pytest.fixture
def researcher(tmp_path, monkeypatch):
    natural_rows(tmp_path / "rows.npz", rows=160, clients=CLIENTS, tests=20)
    return Researcher(tmp_path, monkeypatch)


def settings(researcher, unit, *, kind="distributed", own=False, **privacy):
    data = {"name": "npz", "path": str(researcher.place / "rows.npz"), "partition": "natural", "classes": 2}
    said = {"kind": kind, "unit": unit, "epsilon": 9.0, "noise_multiplier": 6.0} | ({} if own else researcher.shared())
    train = {"rounds": 1, "sampling_rate": None, "local_steps": 1}
    train |= {} if unit == "record" else {"batch_size": 5}
    return {
        "data": data | {"clients": CLIENTS, "examples_per_client": None},
        "model": {"name": "mlp"},
        "train": train,
        "privacy": said | privacy,
    }


def edit(researcher, client=1):
    arrays = natural_rows(researcher.place / "rows.npz", rows=160, clients=CLIENTS, tests=20)
    arrays["x"][np.flatnonzero(arrays["client"] == client)[0]] += 1.0
    np.savez(researcher.place / "rows.npz", **arrays)


def moved(researcher, name, changes):
    """What the one noised sum of a run has done to its model."""
    start = build(researcher.experiment(**changes)).model.state_dict()
    after = load_file(researcher.place / name / "model.safetensors")
    return torch.cat([(after[key] - start[key]).flatten() for key in sorted(after)])


@SUMS
def test_rows_that_change_at_one_client_leave_no_share_of_anothers_noise_as_it_was(researcher, unit):
    changes, found = settings(researcher, unit), []
    for name in ("one", "two"):
        researcher.run(name, **changes)
        found.append(moved(researcher, name, changes))
        edit(researcher)
    assert abs(correlation(*found)) < SHARED


@SUMS
def test_rows_edited_between_two_runs_with_a_ledger_each_leave_no_share_of_anothers_noise_as_it_was(researcher, unit):
    changes, found = settings(researcher, unit, own=True), []
    for name in ("one", "two", "three"):
        researcher.run(name, **changes)
        found.append(moved(researcher, name, changes))
        if name == "one":
            edit(researcher)
    assert abs(correlation(*found[:2])) < SHARED
    assert torch.equal(*found[1:])  # of unchanged rows it is the very same release


@pytest.mark.parametrize(("unit", "more"), [("client", {}), ("record", {"rate_cap": 100.0})])
def test_a_client_that_is_out_of_budget_in_the_second_of_two_runs_is_not_their_difference(researcher, unit, more):
    tight = {"epsilon": [1.1, *[9.0] * (CLIENTS - 1)], "delta_share": 0.3, "fewest_reports": CLIENTS // 2}
    changes, found = settings(researcher, unit, **tight | more), []
    for name in ("one", "two"):
        researcher.run(name, **changes)
        found.append(moved(researcher, name, changes))
    assert abs(correlation(*found)) < SHARED


@SUMS
def test_a_sum_that_is_paid_again_since_rows_were_edited_has_none_of_the_shares_of_the_first(researcher, unit):
    changes, found = settings(researcher, unit, own=True), []
    changes["train"]["rounds"] = 2
    researcher.run(killed_after=0, **changes)
    first = load_file(researcher.place / "run" / CHECKPOINT)["params"]
    (researcher.place / "run" / CHECKPOINT).unlink()
    edit(researcher)
    start = build(researcher.experiment(**changes)).params
    researcher.run(killed_after=0, resume=True, **changes)
    second = load_file(researcher.place / "run" / CHECKPOINT)["params"]
    found = [first - start, second - start]
    assert 0 < abs(correlation(*found)) < SHARED
    (researcher.place / "run" / CHECKPOINT).unlink()
    researcher.run(killed_after=0, resume=True, **changes)  # of unchanged rows it is the same release, which was paid
    assert torch.equal(load_file(researcher.place / "run" / CHECKPOINT)["params"], second)


def test_a_batch_is_drawn_anew_for_a_sum_with_other_rows_under_a_trusted_server(researcher, monkeypatch):
    drawn, real = {}, record_sums.clipped_batch

    def watched(work, client, batch, *rest):
        drawn.setdefault(client.id, []).append(batch.tolist())
        return real(work, client, batch, *rest)

    monkeypatch.setattr(record_sums, "clipped_batch", watched)
    changes = settings(researcher, "record", kind="central", own=True, noise_multiplier=2.0, epsilon=1.0)
    changes["train"]["rounds"] = 2
    researcher.run(killed_after=0, **changes)
    (researcher.place / "run" / CHECKPOINT).unlink()
    edit(researcher)
    researcher.run(killed_after=0, resume=True, **changes)
    assert len(drawn) == CLIENTS
    assert sum(one == two for one, two in drawn.values()) <= 1


def test_cells_of_a_comparison_whose_rows_lie_elsewhere_share_nothing_although_their_settings_are_one(tmp_path):
    found = []
    for name in ("one", "two"):
        arrays = natural_rows(tmp_path / f"{name}.npz", rows=160, clients=CLIENTS, tests=20)
        arrays["x"][1] += float(name == "two")
        np.savez(tmp_path / f"{name}.npz", **arrays)
    paths = [str(tmp_path / f"{name}.npz") for name in ("one", "two")]
    values = {
        "data": {"name": "npz", "path": paths[0], "partition": "natural", "classes": 2},
        "model": {"name": "mlp"},
        "train": {"rounds": 1, "local_steps": 1},
        "privacy": {"kind": "distributed", "unit": "record", "epsilon": 9.0, "noise_multiplier": 6.0},
    }
    values["data"] |= {"clients": CLIENTS, "examples_per_client": None}
    with ready.workers():
        compare(values, {"data.path": paths}, seeds=1, out=tmp_path / "all", jobs=1)
    start = build(tacit.Experiment(**values)).model.state_dict()
    for folder in sorted((tmp_path / "all" / "runs").glob("*/seed-*")):
        after = load_file(folder / "model.safetensors")
        found.append(torch.cat([(after[key] - start[key]).flatten() for key in sorted(after)]))
    assert len(found) == 2
    assert abs(correlation(*found)) < SHARED


def test_runs_on_other_rows_with_a_ledger_each_draw_their_secret_cohorts_independently(researcher, monkeypatch):
    changes, drawn, real = settings(researcher, "client", kind="central", own=True), {}, CentralDP.train

    def watched(self, work, received, client, derive):
        drawn[name].add(client.id)
        return real(self, work, received, client, derive)

    monkeypatch.setattr(CentralDP, "train", watched)
    changes["train"] |= {"clients_per_round": CLIENTS // 2}
    for name in ("one", "two", "three", "four", "four again"):
        drawn[name] = set()
        researcher.run(name, **changes)
        if name != "four":
            edit(researcher, client=len(drawn))
    assert len({frozenset(drawn[name]) for name in ("one", "two", "three", "four")}) > 1
    assert drawn["four"] == drawn["four again"]  # of unchanged rows it is the very same release
