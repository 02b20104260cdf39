"""Test rows that are the clients' own: whoever signs reads how many there are, and that nothing is promised for them."""

import numpy as np
import pytest

import tacit

COLUMNS = {"numeric": {"a": [-4, 4], "b": [-4, 4]}}


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        rows = rng.normal(size=(60, 2))
        lines = [f"{a:.3f},{b:.3f},{int(a > 0)}" for a, b in rows]
        (folder / f"{name}.csv").write_text("a,b,label\n" + "\n".join(lines) + "\n")
    return folder


def run(files, out, **data):
    experiment = tacit.Experiment(
        data={"name": "csv", "path": str(files), "classes": ["0", "1"], "partition": "natural", **COLUMNS, **data},
        train={"rounds": 1, "local_steps": 1},
        privacy={"kind": "local", "epsilon": 1.0},
    )
    return tacit.run(experiment, out=out, page=False)


def test_the_sentence_says_how_many_of_the_clients_records_are_test_rows(files, tmp_path):
    found = run(files, tmp_path / "out", test_share=0.3)
    assert "of the clients' own records are test rows, for which nothing is promised" in found.sentence
    number = int(found.sentence.partition(" of the clients' own records")[0].split()[-1])
    assert 15 < number < 60


def test_public_test_rows_of_a_file_of_their_own_are_nobodys(files, tmp_path):
    (tmp_path / "public").mkdir()
    public = (files / "north.csv").rename(tmp_path / "public" / "test.csv")
    assert "own records are test rows" not in run(files, tmp_path / "out", test_path=str(public)).sentence
