"""A finished run on csv files with gaps, texts and four hospitals, made once for all tests of its use."""

import numpy as np
import pytest

import tacit

HEAD = "age,sex,chol,thal,num"
ROWS = 60


def text(seed, rows=ROWS, head=HEAD):
    """Rows as a hospital might have them: some cells missing, numbers with and without .0."""
    rng = np.random.default_rng(seed)
    lines = [head]
    for _ in range(rows):
        age, ill = int(rng.integers(30, 80)), int(rng.integers(0, 2))
        chol = "" if rng.random() < 0.2 else f"{rng.normal(150 + 250 * ill, 40):.1f}"
        lines.append(f"{age},{'fm'[rng.integers(0, 2)]},{chol},{rng.choice(['3', '6.0', '7', '?'])},{ill}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run; test.csv lies beside it."""
    home = tmp_path_factory.mktemp("finished")
    (home / "records").mkdir()
    for index, name in enumerate(("north", "coast")):
        (home / "records" / f"{name}.csv").write_text(text(index))
    (home / "test.csv").write_text(text(9, rows=2345))
    experiment = tacit.Experiment(
        data={
            "name": "csv",
            "path": str(home / "records"),
            "test_path": str(home / "test.csv"),
            "label": "num",
            "classes": 2,
            "numeric": {"age": [20, 100], "chol": [0, 600]},
            "categorical": {"sex": ["f", "m"], "thal": [3, 6, 7]},
            "missing": {"chol": 240, "thal": "missing"},
        },
        train={"rounds": 10, "local_steps": 10, "sampling_rate": 0.5, "learning_rate": 0.5},
        privacy={"kind": "local", "epsilon": {"north": 50.0, "coast": 50.0}},
        model={"name": "mlp"},
        run={"workers": 1},
    )
    tacit.run(experiment, out=home / "run", page=False)
    return home / "run"
