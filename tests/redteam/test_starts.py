"""A start that has seen the records: an epsilon is worth nothing where the run begins with a model that knows them by heart."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.engine.assemble import START, build
from tacit.errors import LedgerError
from tacit.report.plan import of_experiment
from tacit.simulation import with_passed

ROWS, SITES, WIDTH, NAMED = 48, 4, 32, object()
HEARD = r"was trained by (a run of Tacit|the run [0-9a-f]{32})"
rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 8)).astype(np.float32)
Y = rng.integers(0, 2, ROWS)  # labels that nothing but memory can tell


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


def rows(x=X):
    return tacit.Dataset(x, Y, clients=np.arange(ROWS) % SITES, classes=2, test=(X[:4], Y[:4]))


def experiment(kind="local", **changes):
    values = {
        "train": {"rounds": 2, "local_steps": 2, "batch_size": 8, "learning_rate": 0.1},
        "privacy": {"kind": kind, "epsilon": None if kind == "none" else 1.0, "delta": 1e-3},
        "run": {"workers": 1},
    }
    return tacit.Experiment(**{key: values.get(key, {}) | changes.get(key, {}) for key in values | changes})


def run(out, kind="local", model=None, table=None, data=None, **changes):
    """Tacit's own network where the model is NAMED, else one that is passed."""
    table = {"name": "mlp"} if model is NAMED else table or {}
    own = None if model is NAMED else model or net()
    return tacit.run(experiment(kind, model=table, **changes), data=data or rows(), model=own, out=out, page=False)


def shared(place, share=0.2):
    return {"ledger": str(place / "shared.db"), "delta_share": share}


def memorised(place, **changes):
    longer = {"rounds": 30, "local_steps": 20, "learning_rate": 0.5}
    return run(place / "by heart", "none", train=longer, **changes)


def recalled(model):
    with torch.no_grad():
        return float((model.eval()(torch.from_numpy(X)).argmax(1).numpy() == Y).mean())


def as_it_is(history):
    return history.model


def nudged(history):
    with torch.no_grad():
        next(history.model.parameters()).add_(1e-9)
    return history.model


def copied(history):
    return copy.deepcopy(history.model)


def as_a_body(history):
    return nn.Sequential(*list(history.model)[:-1], nn.Linear(200, 2))


def within(history):
    return nn.Sequential(nn.Identity(), history.model)


@pytest.mark.parametrize("taken", [as_it_is, nudged, copied, within])
def test_a_model_that_knows_the_records_by_heart_does_not_begin_a_private_run(tmp_path, taken):
    history = memorised(tmp_path)
    assert recalled(history.model) > 0.95
    with pytest.raises(LedgerError, match=HEARD):
        run(tmp_path / "private", model=taken(history))
    assert not (tmp_path / "private").exists()


def loaded(history):
    return tacit.load(history.out).model


@pytest.mark.parametrize("taken", [as_a_body, loaded])
def test_nor_does_a_part_of_it_or_what_its_folder_is_loaded_as(tmp_path, taken):
    history = run(tmp_path / "by heart", "none", model=NAMED)
    with pytest.raises(LedgerError, match=HEARD):
        run(tmp_path / "private", model=taken(history))


def test_a_model_whose_folder_does_not_say_who_trained_it_does_not_begin_a_private_run(tmp_path):
    history = run(tmp_path / "by heart", "none", model=NAMED)
    (history.out / "run.json").unlink()
    with pytest.raises(LedgerError, match=HEARD):
        run(tmp_path / "private", model=loaded(history))


@pytest.mark.parametrize("of", ["whole", "body"])
@pytest.mark.parametrize("said", [{}, {"table": {"start": "other-records"}}])
def test_bare_numbers_of_a_run_without_privacy_do_not_begin_one_of_the_same_ledger(tmp_path, of, said):
    history = memorised(tmp_path, privacy=shared(tmp_path))
    start, part = net(), slice(None) if of == "whole" else slice(0, 1)
    start[part].load_state_dict(nn.Sequential(*history.model.children())[part].state_dict())
    with pytest.raises(LedgerError, match=r"holds numbers that the run [0-9a-f]{32} trained without privacy"):
        run(tmp_path / "private", model=start, privacy=shared(tmp_path), **said)
    assert not (tmp_path / "private").exists()
    run(tmp_path / "another", privacy=shared(tmp_path))  # a start that nobody trained is let in


def test_a_run_without_privacy_does_not_tell_the_ledger_of_other_records_what_it_trained(tmp_path):
    run(tmp_path / "one", privacy=shared(tmp_path))
    with pytest.raises(LedgerError, match="belongs to other data"):
        run(tmp_path / "two", "none", data=rows(X + 1), privacy=shared(tmp_path))


def test_what_a_private_run_left_begins_another_where_one_ledger_adds_them_up_and_nowhere_else(tmp_path):
    half = shared(tmp_path) | {"noise_multiplier": 20.0, "epsilon": 9.0}
    first = run(tmp_path / "one", privacy=half)
    second = run(tmp_path / "two", model=first.model, privacy=half)
    assert "Together with the 1 other run of its ledger" in second.sentence
    with pytest.raises(LedgerError, match=HEARD):
        run(tmp_path / "three", model=first.model)


def test_a_model_of_other_peoples_records_begins_a_run_where_that_is_said(tmp_path):
    history = run(tmp_path / "public", "none", data=rows(X + 1))
    again = run(tmp_path / "private", model=history.model, table={"start": "other-records"})
    assert START in again.sentence
    assert 'start = "other-records"' in (tmp_path / "private" / "experiment.toml").read_text()


def somebodys(*, input_shape, classes):
    return net()


@pytest.mark.parametrize(
    ("model", "table"), [(net(), {}), (somebodys, {}), (None, {"name": "redteam.test_starts:somebodys"})]
)
@pytest.mark.parametrize("kind", ["local", "central"])
def test_every_start_that_tacit_did_not_draw_is_in_the_promise_whether_anything_is_frozen_or_not(model, table, kind):
    asked = with_passed(experiment(kind, model=table), data=rows(), model=model)
    assert START in build(asked).promise.assumes
    drawn = with_passed(experiment(kind, model={"name": "mlp"}), data=rows())
    assert START not in build(drawn).promise.assumes


def test_a_site_says_so_of_every_start_for_the_server_gives_it(tmp_path):
    parts = build(with_passed(experiment(model={"name": "mlp"}), data=rows()))
    assert START in replace(parts, place="site").promise.assumes


def test_a_plan_refuses_the_start_that_the_run_would_refuse(tmp_path, monkeypatch):
    history = run(tmp_path / "by heart", "none", model=NAMED)
    monkeypatch.setattr("redteam.test_starts.somebodys", lambda *, input_shape, classes: loaded(history))
    asked = with_passed(experiment(model={"name": "redteam.test_starts:somebodys"}), data=rows())
    with pytest.raises(LedgerError, match=HEARD):
        of_experiment(asked)
