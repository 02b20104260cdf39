"""What the Makefile has a newcomer run are commands that exist, with settings that can be read."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from tacit.cli.app import app
from tacit.engine.assemble import build
from tacit.experiment import Experiment

MAKEFILE = Path(__file__).resolve().parents[1] / "Makefile"
COMMAND = re.compile(r"\$\(BIN\)/tacit (.*?)(?:  |\"|&&|$)", re.MULTILINE)


def commands():
    """Every `tacit ...` of the demo, run or recommended."""
    demo = MAKEFILE.read_text("utf-8").partition("\ndemo:")[2].partition("\n\n")[0]
    return [found.strip() for found in COMMAND.findall(demo)]


def test_the_demo_has_a_run_its_audit_a_comparison_and_what_to_try_next():
    first = [words.split()[0] for words in commands()]
    assert first == ["run", "audit", "compare", "plan", "run", "deploy", "deploy"]


def test_the_budgets_of_the_demos_comparison_are_what_its_words_say():
    (words,) = [shlex.split(words) for words in commands() if words.startswith("compare")]
    settings = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    epsilons = build(Experiment.load(words[1], tuple(settings))).population.epsilons
    low, high = [epsilon for epsilon in epsilons if epsilon < 2], [epsilon for epsilon in epsilons if epsilon > 9]
    assert (len(low), len(high), len(epsilons)) == (17, 3, 20)
    assert "17 allow about 1, three about 10" in MAKEFILE.read_text("utf-8")


@pytest.mark.parametrize("words", commands())
def test_what_the_demo_types_can_be_typed(words):
    group, args = typer.main.get_command(app), shlex.split(words)
    name = args.pop(0)
    command = group.get_command(None, name)  # type: ignore[attr-defined]
    if hasattr(command, "commands"):
        name = args.pop(0)
        command = command.commands[name]
    context = command.make_context(name, list(args))
    if "settings" in context.params and not str(context.params.get("experiment", "")).startswith("runs/"):
        settings = context.params["settings"] or ()
        Experiment.load(str(context.params.get("experiment") or "digits"), tuple(settings))


def test_what_the_automatic_run_calls_are_targets():
    text, run = MAKEFILE.read_text("utf-8"), (MAKEFILE.parent / ".ci" / "run").read_text("utf-8")
    (parts,) = re.findall(r"^for part in ([\w -]+); do", run, flags=re.MULTILINE)
    assert parts.split() == ["check", "test", "package", "docs", "notebooks", "docs-commands", "test-faults"]
    targets = set(re.findall(r"^([\w-]+):", text, flags=re.MULTILINE))
    assert set(parts.split()) - {"notebooks"} <= targets


def test_a_test_file_that_cannot_be_imported_is_an_error_and_not_left_out(tmp_path):
    broken = tmp_path / "test_broken.py"
    broken.write_text("from tacit.check import nothing_of_that_name\n\n\ndef test_it():\n    pass\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        MAKEFILE.with_name("pyproject.toml"),
        "-p",
        "no:cacheprovider",
        broken,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "nothing_of_that_name" in done.stdout
