"""The commands of the pages run: those of some how-tos as they stand, one after the other; all others are known to the program."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys

import pytest
import ready
from docs_pages import PAGES, ROOT, commands, known, whole

from tacit.crypto import reports
from tacit.deploy.site import requests
from tacit.privacy.accounting import events
from tacit.privacy.accounting.price import noise_multiplier
from tacit.privacy.ledger import disk

WALKS = (
    "how-to-operate-a-site",
    "how-to-tune",
)
BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```", flags=re.S | re.M)


def lines(name):
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    return [line.strip() for _, block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("name", WALKS)
def test_the_commands_of_a_page_run_as_they_stand(name, tmp_path):
    """`! tacit` is one that the page says is refused: exit code 2 and one sentence."""
    if "deploy" in "".join(lines(name)):
        pytest.importorskip("flwr")
    assert lines(name)
    said = ""
    for line in lines(name):
        refused = line.startswith("! ")
        words = shlex.split(line.removeprefix("! "), comments=True)
        if words[0] == "tacit":
            done = ready.tacit(*words[1:], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}).wait()
        else:
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == (2 if refused else 0), (line, done.stdout, done.stderr)
        said += " ".join(done.stderr.split()) if refused else ""
    for sentence in re.findall(r"^    (\w+\.db is .*)$", (ROOT / "docs" / f"{name}.md").read_text("utf-8"), re.M):
        assert sentence in said


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_command_of_a_page_is_one_that_the_program_knows(page):
    for one in commands(page):
        if one.program != "tacit":
            continue
        command, words = known(one)
        assert not hasattr(command, "commands") or not words or words[0].startswith("--"), (
            f"{one.line}: no such command"
        )
        options = {name for one in (*command.params, *whole().params) for name in (*one.opts, *one.secondary_opts)}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
        assert not unknown, f"{one.line}: {unknown}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Say `tacit version` to it.", ["tacit version"]),
        ("    tacit run digits --out one   # a comment\n", ["tacit run digits --out one"]),
        ("`tacit deploy init x && tacit deploy up x`", ["tacit deploy init x", "tacit deploy up x"]),
        ("```sh\ntacit plan digits \\\n  --set run.seed=1\n```\n", ["tacit plan digits --set run.seed=1"]),
        ('    A="--set run.seed=1"\n    tacit run digits $A\n', ["tacit run digits --set run.seed=1"]),
        ("```python\ntacit run\n```\n`tacit run …`, or\n`tacit COMMAND --help`", []),
    ],
)
def test_the_commands_of_a_page_are_found(text, found, tmp_path):
    (tmp_path / "page.md").write_text(text, "utf-8")
    assert [one.line for one in commands(tmp_path / "page.md")] == found


def test_a_run_is_read_without_tacit_as_the_page_on_formats_says(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "formats.md").read_text("utf-8"), flags=re.S)
    done = ready.tacit("run", "digits", "--set", "train.rounds=2", "--out", "runs/first", cwd=tmp_path).wait()
    assert done.returncode == 0, done.stderr
    read = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert "the chain holds over 2 batches" in read.stdout
    assert "[10, 64]" in read.stdout


def test_the_python_of_reading_a_ledger_runs_as_printed(tmp_path):
    page = ROOT / "docs" / "how-to-operate-a-site.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.S)
    (tmp_path / "page.py").write_text(code)
    done = ready.script(tmp_path / "page.py", cwd=tmp_path).wait()
    assert done.returncode == 0, done.stderr
    assert "client-0 0 " in done.stdout


def test_the_page_on_formats_names_every_table_column_event_and_question():
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    ours = (kind for kind in events._KINDS.values() if kind.types[0].__module__.startswith(("tacit.", "dp_accounting")))
    said = {f"`{word}`" for word in (*requests.KINDS, *disk.COLUMNS, *(kind.name for kind in ours))}
    said |= {f"`{name}`" for name in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", disk.SCHEMA)}
    said |= {f"`{field.name}`" for field in dataclasses.fields(reports.Header)}
    assert sorted(word for word in said if word not in page) == []
    assert f"Format {disk.FORMAT}:" in page
    assert repr(reports.PREFIX.decode())[1:-1] in page


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "said"),
    [
        (10.0, 0.2, 1000, "z = 3.261"),
        (10.0, 1.0, 1000, "z = 15.82"),
        (0.1, 8 / 1200, 8000, "need 18.4"),
        (1.0, 8 / 1200, 8000, "2.35 and"),
        (10.0, 8 / 1200, 8000, "and .650"),
    ],
)
def test_the_noise_that_the_results_name_is_what_the_plan_computes(epsilon, rate, steps, said):
    """To 0.2 %: a calibration stops at 0.1 %."""
    assert said in " ".join((ROOT / "docs" / "results.md").read_text("utf-8").split())
    z = noise_multiplier(epsilon=epsilon, delta=1e-5, sampling_rate=rate, steps=steps)
    named = re.search(r"\d*\.\d+", said)[0]
    assert z == pytest.approx(float(named), rel=0.002 + 0.5 * 10.0 ** -len(named.partition(".")[2]) / z)
