"""Every claim of docs/threat-model.md names a test that exists, and every file of the red team is named there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"(tests/[\w/]+\.py)::(\w+)", PAGE)))
UNCLAIMED = "nothing is claimed"


@cache
def functions(path: Path) -> frozenset[str]:
    """The names of a file's own functions, read without running it."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def rows():
    """The cells of every row of a table that has a column of tests."""
    tested = False
    for before, line in zip(["", *PAGE.splitlines()], PAGE.splitlines(), strict=False):
        if line.startswith("|") and not before.startswith("|"):
            tested = line.rstrip().endswith("| test |")
        elif tested and line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_the_threat_model_names_is_there(file, name):
    assert (ROOT / file).is_file()
    assert name in functions(ROOT / file)


def test_every_claim_names_a_test():
    claims = list(rows())
    assert len(claims) > 50
    for *claim, tests in claims:
        assert re.search(r"tests/[\w/]+\.py::test_\w+", tests) or tests == UNCLAIMED, claim


def test_everything_that_looks_like_a_test_is_read_as_one():
    assert {name for _, name in NAMED} == set(re.findall(r"\btest_\w+(?![\w.])", PAGE)) - {"test_threat_model"}


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "redteam").glob("test_*.py")), ids=lambda path: path.name)
def test_every_file_of_the_red_team_is_named(path):
    assert path.relative_to(ROOT).as_posix() in {file for file, _ in NAMED}
