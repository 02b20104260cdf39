"""Every example runs, and the README's Python works as printed."""

import os
import re
from pathlib import Path

import pytest
import ready

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(path, tmp_path):
    needs = {"tune_hugging_face": ("transformers", "peft"), "opendp_count": ("opendp",)}
    for package in needs.get(path.stem, ()):
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


def test_the_parts_of_how_to_extend_run_as_printed(tmp_path):
    """Every block that names its file, in an experiment made of the tables beside them, from the folder that holds the package."""
    text = (ROOT / "docs" / "how-to-extend.md").read_text("utf-8")
    (tmp_path / "mypackage").mkdir()
    files = re.findall(r"```python\n# mypackage/(\w+\.py)\n(.*?)```", text, flags=re.S)
    assert [name for name, _ in files] == ["models.py", "data.py", "writers.py", "losses.py", "metrics.py"]
    for name, code in files:
        (tmp_path / "mypackage" / name).write_text(code)
    tables = "\n".join(re.findall(r"```toml\n(.*?)```", text, flags=re.S))
    few = "[data]\nclients = 6\nexamples_per_client = 60"
    rest = "[train]\nrounds = 3\n[run]\nwriters = ['mypackage.writers:diary']\nworkers = 1"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "all.toml").write_text(f"{tables.replace('[data]', few)}\n{rest}\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = ready.tacit("run", "mine/all.toml", "--out", "out", cwd=tmp_path, env=environment).wait()
    assert done.returncode == 0, done.stderr
    assert "lift" in done.stdout
    assert len((tmp_path / "out" / "diary.txt").read_text().splitlines()) == 1 + 3 + 1
