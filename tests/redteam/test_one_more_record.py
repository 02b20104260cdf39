"""One more record at one client, or one of another value: what of the others, or of what is decided, must not move with it."""

import numpy as np
import pytest
import torch

import tacit
from tacit.data.texts import FROM_DATA_NOTE
from tacit.engine.assemble import build, clients
from tacit.errors import BadInput
from tacit.personal import one
from tacit.simulation import with_passed

SITES, EACH = 6, 150


def rows(*, more=0, value=0.0, classes: int | str = 2):
    """The rows of six sites; the first may hold some more, of this value."""
    rng = np.random.default_rng(3)
    parts = [(rng.normal(size=(EACH, 4)).astype(np.float32), rng.integers(0, 2, EACH)) for _ in range(SITES)]
    x, y = parts[0]
    parts[0] = (np.concatenate([x, np.full((more, 4), value, np.float32)]), np.concatenate([y, np.zeros(more, int)]))
    return tacit.Dataset(parts, classes=classes, test=(np.zeros((4, 4), np.float32), [0, 1, 0, 1]))


def experiment(**changes):
    values = {
        "train": {"rounds": 1, "local_steps": 2, "batch_size": 8},
        "privacy": {"kind": "central", "epsilon": 1.0, "delta": 1e-3},
        "run": {"workers": 1},
    }
    return tacit.Experiment(**{key: values.get(key, {}) | changes.get(key, {}) for key in values | changes})


def with_rows(own, **changes):
    return with_passed(experiment(**changes), data=own)


def test_one_more_record_at_one_site_moves_no_row_of_another():
    (_, _, one), (_, _, other) = (clients(with_rows(rows(more=more))) for more in (0, 1))
    assert one.sizes.tolist() == [EACH] * SITES
    assert other.sizes.tolist() == [EACH + 1, *[EACH] * (SITES - 1)]
    assert [torch.equal(one[k].x, other[k].x) for k in range(1, SITES)] == [True] * (SITES - 1)
    assert torch.equal(one[0].x, other[0].x[:EACH])  # nor those that lie beside it


def test_one_more_record_cannot_exchange_other_sites_rows_through_a_cap():
    with pytest.raises(BadInput, match=r"examples_per_client is for rows that Tacit deals out"):
        clients(with_rows(rows(), data={"examples_per_client": 50}))
    with pytest.raises(ValueError, match=r"examples_per_client is for rows that Tacit deals out"):
        experiment(data={"partition": "natural", "examples_per_client": 50})


def test_labels_that_the_rows_themselves_made_public_are_said_to_be_so_in_the_promise():
    said = [build(with_rows(rows(classes=classes))).promise.assumes for classes in (2, "from-data")]
    assert [FROM_DATA_NOTE in assumes for assumes in said] == [False, True]


def test_whether_a_last_layer_can_be_fitted_alone_is_asked_of_no_private_row():
    asked = {"personal": {"kind": "head"}, "data": {"own_share": 0.2}, "privacy": {"kind": "local", "epsilon": 9.0}}
    parts = build(with_rows(rows(), **asked))
    one.refuse_unfit("head", parts.model, parts.population.x.to("meta"))
