"""Membership attacks on real runs: shadow models side by side, kept and found again."""

import json

import numpy as np
import pytest

from tacit.engine.assemble import build
from tacit.errors import BadData, BadInput
from tacit.experiment import Experiment
from tacit.lab import attacks
from tacit.lab.attacks._runs import pooled, whole
from tacit.lab.attacks.membership import MEMBERS, halves, members

SMALL = Experiment(
    name="small",
    data={"clients": 4, "examples_per_client": 30},
    train={"rounds": 4, "local_steps": 60, "learning_rate": 1.0},
)


def test_mirrors_share_no_record_and_have_all_of_them_client_by_client():
    parts = build(whole(SMALL))
    first, second, third = (halves(parts.population, seed=0, number=number) for number in range(3))
    assert (first ^ second).all()
    assert (first != third).any()
    assert np.add.reduceat(first, parts.population.offsets[:-1]).tolist() == [15] * 4


def test_a_shadow_run_has_its_members_rows_and_the_clients_names_and_budgets():
    local = {"kind": "local", "epsilon": [1.0, 2.0, 3.0, 4.0]}
    experiment = Experiment(**SMALL.model_dump(exclude_none=True) | {"privacy": local})
    parts = build(whole(experiment))
    shadow = build(Experiment(**pooled(experiment, MEMBERS, number=1).model_dump(exclude_none=True)))
    mask = halves(parts.population, seed=0, number=1)
    for index in range(4):
        rows = slice(30 * index, 30 * (index + 1))
        mine, theirs = shadow.population[index].x, parts.population.x[rows][mask[rows]]  # in whatever order
        assert sorted(mine.flatten(1).tolist()) == sorted(theirs.flatten(1).tolist())
    assert shadow.population.names == parts.population.names
    assert shadow.population.epsilons.tolist() == parts.population.epsilons.tolist()
    assert shadow.params.equal(parts.params)


def test_models_rows_and_columns_that_no_shadow_could_have_are_refused():
    data = {"name": "csv", "path": "x.csv", "numeric": {"age": "private"}, "classes": ["a", "b"]}
    with pytest.raises(BadInput, match="range of 'age'"):
        whole(Experiment(data=data))
    for models in (1, 4, 7):
        with pytest.raises(BadInput, match="even number of models, at least 6"):
            attacks.load("membership", models=models)
    with pytest.raises(BadData, match="has 1 row"):
        members(of={"name": "digits", "clients": 3, "examples_per_client": 1}).load(seed=0)


def test_an_overfitted_model_gives_its_members_away_and_shadows_are_not_trained_twice(tmp_path):
    told = []
    how = {"out": tmp_path, "options": {"models": 6}, "jobs": 1}
    found = attacks.attack("membership", SMALL, **how, tell=told.append)
    for name in ("LiRA", "RMIA", "server"):
        assert found.number("AUC", name).value > 0.55, name
        assert found.number("TPR at 1 % FPR", name).low is not None
        assert found.number("AUC", f"{name}, client-3").value > 0.3
    assert any("cannot show" in note for note in found.notes)
    assert "6 models, 0 of them trained before" in told
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    assert len(before) == 7  # six shadow models, and the run that the server watched
    (tmp_path / "attack-membership.json").unlink()
    again = attacks.attack("membership", SMALL, **how, tell=told.append)
    assert "6 models, 6 of them trained before" in told
    assert again.estimates == found.estimates
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")} == before
    assert json.loads((tmp_path / "attack-membership.json").read_text("utf-8"))["badge"] == "not covered by ε"
