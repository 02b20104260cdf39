"""Folders of real runs for the report: one that ended, one with names that try to become markup, one that was stopped."""

import pytest
from browser import CHROMIUM, WHY_NOT, Browser
from report_runs import EVIL, Stop, changed

import tacit


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    """A run that ended. Do not change it."""
    place = tmp_path_factory.mktemp("ended") / "run"
    tacit.run(changed(), out=place)
    return place


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after three of its rounds."""

    def observe(record):
        if record["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        tacit.run(changed(), out=tmp_path / "stopped", observe=observe)
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
def browser():
    """Headless Chromium."""
    if CHROMIUM is None:
        pytest.skip(WHY_NOT)
    with Browser() as one:
        yield one
