"""A researcher who edits the rows of a `tacit.Dataset` between two runs on one ledger: scaled, a row looks like a new one."""

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.errors import BadInput, LedgerError

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 2, 60)
NAMES = ("north", "coast")
SHARES = {"north": slice(0, 30), "coast": slice(30, 60)}
HOW = {"classes": 2, "test": (X[:10] + 0.125, Y[:10])}


def held():
    return tacit.Dataset({name: (X[share], Y[share]) for name, share in SHARES.items()}, **HOW)


def mapped():
    return tacit.Dataset.from_loader(lambda name: (X[SHARES[name]], Y[SHARES[name]]), NAMES, **HOW)


def run(data, out, *, model=None, resume=False, **privacy):
    said = {"kind": "local", "epsilon": 0.5, "delta": 1e-4, "noise_multiplier": 20.0}
    chosen = tacit.Experiment(
        train={"rounds": 2, "local_steps": 1, "sampling_rate": 0.5},
        privacy=said | {"ledger": str(out.parent / "shared.db"), "delta_share": 0.25} | privacy,
        run={"workers": 1},
    )
    return tacit.run(chosen, data=data, model=model or nn.Linear(4, 2), out=out, resume=resume, page=False)


def exchanged(data, factor=2.0):
    """Every row by another scale, and with the other client."""
    data.rows.x.copy_(torch.cat([data.rows.x[30:], data.rows.x[:30]]) * factor)
    data.rows.y.copy_(torch.cat([data.rows.y[30:], data.rows.y[:30]]))


def through_numpy(data):
    array = data.rows.x.numpy()
    array[:] = np.concatenate([array[30:], array[:30]]) * 2


def replaced(data):
    other = held()
    exchanged(other)
    data.rows = other.rows


def as_other_clients(data):
    data.rows.client[:] = 1 - data.rows.client


EDITS = {
    "in place": exchanged,
    "through NumPy": through_numpy,
    "by other ones": replaced,
    "their clients": as_other_clients,
}


IN_A_FILE = (exchanged, through_numpy, replaced)  # there rows lie client by client, whatever the codes of clients say


@pytest.mark.parametrize(("made", "edit"), [(held, e) for e in EDITS.values()] + [(mapped, e) for e in IN_A_FILE])
def test_rows_edited_between_two_runs_are_other_rows_and_not_paid_for_as_new_ones(tmp_path, made, edit):
    """6.16 was spent of .5: what a ledger knew the rows by was computed when the Dataset was made."""
    data = made()
    assert run(data, tmp_path / "one").guarantee.others is None
    assert run(data, tmp_path / "two").guarantee.others.runs == 1
    edit(data)
    with pytest.raises(LedgerError, match="belongs to other data"):
        run(data, tmp_path / "three")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_run_does_not_go_on_with_rows_that_were_edited(tmp_path, edit):
    data, model = held(), nn.Linear(4, 2)
    run(data, tmp_path / "one", model=model)
    edit(data)
    with pytest.raises(BadInput, match="was started with other data"):
        run(data, tmp_path / "one", model=model, resume=True)


def test_rows_that_a_models_factory_puts_back_are_known_as_they_are_trained_on(tmp_path):
    """The rows are taken, then the model is made: whoever looks at the program's own rows after that sees the old ones."""
    data = held()
    run(data, tmp_path / "one")
    exchanged(data)

    def factory(**_):
        exchanged(data, 0.5)
        return nn.Linear(4, 2)

    with pytest.raises(LedgerError, match="belongs to other data"):
        run(data, tmp_path / "two", model=factory)
