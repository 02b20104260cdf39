"""Every example runs, and the README's Python works as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(path, tmp_path):
    for package in ("transformers", "peft") if "hugging" in path.stem else ():
        pytest.importorskip(package)
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_python_in_the_readme_runs_as_printed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "add or remove one record" in done.stdout
