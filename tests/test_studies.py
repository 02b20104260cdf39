"""The studies in experiments/ are made of experiments that can be run."""

import json
import re
import runpy
from argparse import Namespace
from pathlib import Path

import pytest

from tacit.build.parts import build
from tacit.compare.results import Estimate, Row

STUDY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "experiments" / "defences.py"))


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
