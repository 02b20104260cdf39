"""Commands load torch when they train, and not before: help, mistakes, prices of numbers and ledgers are there at once."""

import ast
import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tacit import cli

SCRIPT = """import sys
sys.argv = {words!r}
from tacit.cli import main
try:
    main()
finally:
    print({names!r} & sys.modules.keys())
"""
HEAVY = {"torch", "matplotlib", "flwr", "sklearn"}


def typed(words, tmp_path, names=HEAVY):
    code = SCRIPT.format(words=["tacit", *words], names=names)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["run", "--help"], 0),
        (["run", "--set", "train.rond=3"], 2),
        (["run", "--out", "book"], 2),
        (["plan", "digits", "--set", "train.rond=3"], 2),
        (["compare", "--set", "train.rond=3"], 2),
        (["tune", "--set", "train.rond=3"], 2),
        (["audit", "digits", "--set", "train.rond=3"], 2),
        (["attack", "membership", "--set", "train.rond=3"], 2),
        (["attack", "bakdoor"], 2),
        (["stats", "digits", "--set", "train.rond=3"], 2),
        (["data", "digits", "--set", "train.rond=3"], 2),
        (["data", "mnits"], 2),
        (["deploy", "init", "here", "--set", "train.rond=3"], 2),
        (["plan", "epsilon=3", "delta=1e-5", "sampling_rate=1", "steps=2"], 0),
        (["ledger", "book"], 0),
        (["ledger", "book", "--to", "-"], 0),
    ],
)
def test_what_trains_nothing_loads_nothing_that_trains(words, code, tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "ledger.db").write_bytes(b"")
    (tmp_path / "book" / "experiment.toml").write_text("")
    done = typed(words, tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "set()", done.stdout


def test_a_mistyped_key_is_refused_at_once(tmp_path):
    """It takes .2 s of a processor; most of 4.7 s was torch."""
    began = sum(time_of_children())
    done = typed(["run", "--set", "train.rond=3"], tmp_path, names={"torch", "scipy", "dp_accounting"})
    assert done.stderr == "Unknown key 'train.rond'. Did you mean 'train.rounds'?\n"
    assert done.stdout == "set()\n"
    assert sum(time_of_children()) - began < 0.7


def time_of_children():

    found = os.times()
    return found.children_user, found.children_system


def test_what_a_command_loads_late_is_there():
    """A module that was moved breaks nobody's import but that of the command that needs it."""
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
                found = importlib.import_module(node.module)
                for name in node.names:
                    known = hasattr(found, name.name) or find_spec(f"{node.module}.{name.name}")
                    assert known, f"{path.name}: {node.module}.{name.name}"
