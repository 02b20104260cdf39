"""Every example runs, and the README's Python works as printed."""

import os
import re
from pathlib import Path

import pytest
import ready

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(path, tmp_path):
    for package in ("transformers", "peft") if "hugging" in path.stem else ():
        pytest.importorskip(package)
    assert len(path.read_text().splitlines()) <= 60
    done = ready.script(path, cwd=tmp_path).wait()
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_python_in_the_readme_runs_as_printed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    (tmp_path / "readme.py").write_text(code)
    done = ready.script(tmp_path / "readme.py", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}).wait()
    assert done.returncode == 0, done.stderr
    assert "add or remove one record" in done.stdout
