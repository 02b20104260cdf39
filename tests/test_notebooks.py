"""The tutorials run from an empty folder, and what they keep would be the same on another machine, but for chance."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).resolve().parents[1]
BOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
NAMES = (
    "audit",
    "dataframe-to-federation",
    "encrypted-sums",
    "first-run",
    "local-or-central",
    "noise-once",
    "own-epsilon",
)
ELSEWHERE = {
    "a machine's path": re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|var|opt|Users|private)/"),
    "a clock": re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d"),
    "a duration": re.compile(r"\d (?:s|ms|seconds|minutes)\b"),
    "a terminal's code": re.compile(r"\x1b"),
}


def cells(path):
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def printed(cell):
    return "".join("".join(part.get("text") or part["data"]["text/plain"]) for part in cell["outputs"])


def test_there_is_a_notebook_for_every_tutorial():
    assert [path.stem for path in BOOKS] == list(NAMES)


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_kept_outputs_name_no_machine_and_no_time(path):
    text = "\n".join(printed(cell) for cell in cells(path))
    assert text, "run `python docs/notebooks.py`"
    for what, pattern in ELSEWHERE.items():
        found = pattern.search(text)
        assert not found, f"{what}: {found[0]}"
    assert not [part for cell in cells(path) for part in cell["outputs"] if part["output_type"] == "error"]
    assert os.uname().nodename not in text or len(os.uname().nodename) < 4


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_kept_outputs_are_of_this_version(path):
    text = "\n".join(printed(cell) for cell in cells(path))
    assert set(re.findall(r"\bTacit (\d[\w.]*\w)", text)) <= {tacit.__version__}, "run `python docs/notebooks.py`"


def test_a_table_that_has_got_another_column_makes_a_kept_output_stale():
    nbformat = pytest.importorskip("nbformat")
    script = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    notebooks = importlib.util.module_from_spec(script)
    pytest.importorskip("nbclient")
    script.loader.exec_module(notebooks)

    def book(text):
        output = nbformat.v4.new_output("stream", text=text)
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("!tacit plan", outputs=[output])])

    narrow, wide = "┏━━┓\n┃ noise   ┃\n┃ multip. ┃\n┡━━┩\n│ 1.2 │", "┏━━━━┓\n┃ noise multip. ┃\n┡━━━━┩\n│ 3.4 │"
    assert notebooks.stale(book(narrow), book(wide)) == []
    assert notebooks.stale(book(narrow), book("┏━━┓\n┃ noise ┃ clients ┃\n┡━━┩"))
    assert notebooks.stale(book("Tacit 0.1.0, flwr"), book("Tacit 0.2.0, flwr"))


@pytest.mark.notebooks
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_as_it_is_printed(path):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    if "federation" in path.stem:
        pytest.importorskip("flwr")
        pytest.importorskip("pandas")
    words = [sys.executable, str(ROOT / "docs" / "notebooks.py"), "--check", path.stem]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert path.name in done.stdout
