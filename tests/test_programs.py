"""Every program of bench/ and experiments/ runs. Its docstring says how it runs small, in a line that ends in "# small", or
in "# small, with PACKAGE" where it needs what may not be installed."""

import ast
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import programs
import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted((*(ROOT / "bench").glob("*.py"), *(ROOT / "experiments").glob("*.py")))
SMALL = re.compile(r"^ {4}python (\S+) (.*?)  # small(?:, with (.*))?$", re.MULTILINE)
SLOW = {"encrypted", "flower", "round", "sites"}  # many processes: `make docs-commands` runs these
SECONDS = 600.0


def small(program):
    """(words, packages) of every small run that a program's docstring says."""
    text = ast.get_docstring(ast.parse(program.read_text("utf-8")), clean=False) or ""
    return [
        (shlex.split(words), (needs or "").split(", "))
        for path, words, needs in SMALL.findall(text)
        if ROOT / path == program
    ]


RUNS = [
    pytest.param(
        program, words, needs, id=f"{program.stem}-{number}", marks=[pytest.mark.docs_commands] * (program.stem in SLOW)
    )
    for program in PROGRAMS
    for number, (words, needs) in enumerate(small(program))
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_every_program_says_how_it_runs_small_without_anything_more(program):
    assert any(needs == [""] for _, needs in small(program))


@pytest.mark.parametrize(("program", "words", "needs"), RUNS)
def test_a_program_runs_small(program, words, needs, tmp_path):
    if missing := [package for package in needs if package and find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    code, said = programs.run(program, words, tmp_path, seconds=SECONDS)
    assert code == 0, said[-3000:]
    assert said.strip()
