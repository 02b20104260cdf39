"""Folders of real runs for the report: one that ended, one with names that try to become markup, one that was stopped."""

import json
import shutil

import numpy as np
import pytest
from browser import CHROMIUM, WHY_NOT, Browser
from report_runs import EVIL, changed
from trained import Stop, stop_after

import tacit
from tacit.lab.attacks import Estimate, Finding, Line, Plot
from tacit.lab.attacks._roc import strip_of
from tacit.lab.compare.grid import GRID, expand, tasks_of
from tacit.lab.grid import plain
from tacit.report.page import write_page


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    """A run that ended. Do not change it."""
    place = tmp_path_factory.mktemp("ended") / "run"
    tacit.run(changed(), out=place)
    return place


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after three of its rounds."""
    with pytest.raises(Stop):
        tacit.run(changed(), out=tmp_path / "stopped", observe=stop_after(2))
    return tmp_path / "stopped"


@pytest.fixture(scope="session")
def evil(tmp_path_factory):
    """A run whose experiment, clients, labels and settings are named to become markup."""
    home = tmp_path_factory.mktemp("evil")
    quoted = ['"' + name.replace('"', '""') + '"' for name in EVIL]
    rows = [f"{i % 7},{quoted[i % 2]},{quoted[i % 4]}" for i in range(200)]
    (home / "records.csv").write_text("\n".join(["a,ill,who", *rows]) + "\n", encoding="utf-8")
    data = {"name": "csv", "path": str(home / "records.csv"), "partition": "natural", "client_column": "who"}
    data |= {"label": "ill", "classes": list(EVIL[:2]), "numeric": {"a": [0, 7]}}
    privacy = {"kind": "local", "epsilon": dict(zip(EVIL, (1.0, 2.0, 3.0, 4.0), strict=True))}
    experiment = tacit.Experiment(
        name=EVIL[1], data=data, train={"rounds": 2, "local_steps": 1}, privacy=privacy, run={"workers": 1}
    )
    tacit.run(experiment, out=home / "run")
    return home / "run"


@pytest.fixture(scope="session")
def several(ended, tmp_path_factory):
    """A page of two runs with different promises."""
    home = tmp_path_factory.mktemp("several")
    tacit.run(changed(privacy={"kind": "none", "epsilon": None}), out=home / "open", page=False)
    tacit.run(changed(privacy={"epsilon": 3.0}, train={"rounds": 4}), out=home / "three", page=False)
    write_page([ended, home / "open", home / "three"], home / "report.html")
    return home / "report.html"


@pytest.fixture(scope="session")
def attacked(tmp_path_factory):
    """The page of an inversion and of an attack whose words try to become markup."""
    place = tmp_path_factory.mktemp("attacked")
    pictures = {"records": np.tile(np.linspace(0, 1, 64), (12, 1)), "ε = ∞": np.zeros((12, 64))}
    estimates = (Estimate("recovered, of 12", 10.0, 6.2, 11.7, of="ε = ∞"), Estimate("PSNR (dB)", 85.0, of="ε = ∞"))
    lines = (Line("ε = ∞", (1.0, 2.0), (100.0, 11.0)), Line("chance", (1.0, 2.0), (10.0, 10.0)))
    plot = Plot("psnr", "Nearness", "records", "PSNR (dB)", lines)
    strip = strip_of(pictures, (1, 8, 8), low=0.0, high=1.0)
    found = [Finding("inversion", "digits", "12 records", estimates, (plot,), ("A note.",), strip=strip)]
    false = (0.0, 0.01, 1.0)
    roc = Plot(
        "roc", EVIL[1], EVIL[0], "true", (Line(EVIL[2], false, false), Line("all", false, (0.0, 0.1, 1.0))), log=True
    )
    found.append(Finding("evil", EVIL[0], EVIL[1], (Estimate(EVIL[2], 1.0, of=EVIL[3]),), (roc,), (EVIL[1],)))
    for one in found:
        (place / f"attack-{one.attack}.json").write_text(json.dumps(one.record()), "utf-8")
    write_page([place], place / "report.html")
    return place / "report.html"


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """The folder of a comparison of three rules over three seeds, in which clients have own models too; without its tables."""
    place = tmp_path_factory.mktemp("compared") / "comparison"
    place.mkdir()
    cheap = {"epsilon": [1.0, 2.0, 8.0]}
    data, personal = {"clients": 3, "own_share": 0.3}, {"kind": "mean-regularised"}
    values = plain(changed(data=data, train={"rounds": 1}, privacy=cheap, personal=personal))
    vary = {"aggregate.rule": ["mean", "weighted", "random-effects"]}
    GRID.write(place, GRID.texts(values, vary, 3))
    for task in tasks_of(place, expand(values, vary, seeds=3)):
        tacit.run(task.experiment, out=task.folder, page=False)
    write_page([place], place / "report.html")
    return place


@pytest.fixture(scope="session")
def deployed(ended, tmp_path_factory):
    """A run's folder with the word of a server beside it, as a deployment leaves it: one site refused, one is out."""
    place = tmp_path_factory.mktemp("deployed") / "run"
    shutil.copytree(ended, place)
    names = json.loads((place / "clients.json").read_text())["names"]
    asked = {"round": 5, "over": True, "answered": names[:3], "refused": {names[3]: EVIL[1]}}
    status = {"state": "running", "text": "round 6", "time": 1.7e9, "sites": names, "spent": {names[0]: 0.5}}
    status["asked"] = asked | {"silent": {names[4]: "is not connected"}}
    (place / "status.json").write_text(json.dumps(status))
    write_page([place], place / "report.html")
    return place


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium."""
    if CHROMIUM is None:
        pytest.skip(WHY_NOT)
    with Browser() as one:
        yield one
