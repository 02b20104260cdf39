"""The studies in experiments/ are made of experiments that can be run."""

import json
import math
import re
import runpy
from argparse import Namespace
from pathlib import Path

import pytest

import tacit
from tacit.engine.assemble import build
from tacit.lab.compare.results import Row
from tacit.table import Estimate

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
STUDY = runpy.run_path(str(EXPERIMENTS / "defences.py"))


def cells(*, full):
    """(defence, attack, cell) of everything that is a run by itself."""
    names = {"defences": list(STUDY["DEFENCES"]), "attacks": list(STUDY["ATTACKS"])}
    return list(STUDY["cells"](Namespace(full=full, seeds=2, device="cpu", **names)))


@pytest.mark.parametrize("full", [False, True])
def test_the_study_of_defences_has_every_backdoor_under_every_defence(full):
    found = cells(full=full)
    pairs = {(defence, attack) for defence, attack, _ in found}
    assert {(one, kind) for one in STUDY["DEFENCES"] for kind in STUDY["BACKDOORS"]} < pairs
    assert len({cell.slug for _, _, cell in found}) == len(found) == 9 * 4 - 1
    for _, attack, cell in found:
        assert {experiment.attack is None for experiment in cell.experiments} == {attack not in STUDY["BACKDOORS"]}


def test_every_run_of_the_small_study_can_be_built():
    for _, attack, cell in cells(full=False):
        assert (build(cell.experiments[0]).attack is None) == (attack not in STUDY["BACKDOORS"])


def test_the_study_writes_its_matrix_as_a_page(tmp_path):
    args = Namespace(
        full=False, seeds=3, device="cpu", defences=["none", "Krum"], attacks=["dba", "property"], out=tmp_path
    )
    rows = [(defence, attack, Row(cell, ())) for defence, attack, cell in STUDY["cells"](args)]
    STUDY["page"](rows, {("Krum", "property"): [Estimate(0.625, 0.1, (0.0, 1.0))]}, args)
    text = (tmp_path / "table.html").read_text("utf-8")
    (data,) = re.findall(r'type="application/json">(.*?)</script>', text)
    found = json.loads(data)["matrix"]
    assert [column["name"] for column in found["columns"]] == ["property AUC"]
    assert [(row["label"], row["attacked"]) for row in found["rows"]] == [
        ("none", [None]),
        ("Krum", [[0.625, 0.525, 0.725]]),
    ]


def test_every_cell_of_the_study_of_own_models_can_be_built(tmp_path, monkeypatch):
    study = runpy.run_path(str(EXPERIMENTS / "own_models.py"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXPERIMENTS.parent / "examples" / "hospitals" / "make_different.py"), run_name="__main__")
    for name, values in study["cells"]().items():
        parts = build(tacit.Experiment(**values))
        assert parts.population.held is not None, name
        assert study["pooled"](parts).shape == parts.params.shape
    assert {values["aggregate"]["rule"] for values in study["mnist"]().values()} == {"random-effects", "weighted"}
    assert all(tacit.Experiment(**values).data.own_share == 0.3 for values in study["mnist"]().values())


def test_the_study_of_own_models_during_training_keeps_what_has_ended(tmp_path, monkeypatch):
    study = runpy.run_path(str(EXPERIMENTS / "mean_regularised.py"))
    own = {"kind": "mean-regularised", "strength": 1.0, "when": "during"}
    made = study["experiment"](6.0, 0, own)
    short = made.model_copy(update={"train": made.train.model_copy(update={"rounds": 1})})
    first = study["trained"](short, study["silos"](0), tmp_path / "run")
    monkeypatch.setattr(tacit, "run", None)  # a second start asks for no run
    assert study["trained"](short, study["silos"](0), tmp_path / "run") == first
    assert study["told"](first, "own") > 0
    assert study["best"]([{"during, 0": 2.0, "during, 1": 1.0, "one model": 0.5}], "during") == "during, 1"


def test_group_privacy_of_the_study_of_persons_is_that_of_five_records():
    study = runpy.run_path(str(EXPERIMENTS / "persons.py"))
    asked = study["privacy"]("local", "group", 3.0)
    assert 5 * asked["epsilon"] == pytest.approx(3.0)
    assert 5 * math.exp(4 * asked["epsilon"]) * asked["delta"] == pytest.approx(1e-5)  # Dwork and Roth, theorem 2.2
    for kind, way in (("local", "person"), ("central", "group"), ("local", "record")):
        assert tacit.Experiment(privacy=study["privacy"](kind, way, 1.0), train={"local_steps": 1}).privacy.kind == kind
