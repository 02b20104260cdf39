"""The public API is what `tacit.__all__` says, what `dir(tacit)` shows, and what docs/api.md explains."""

import os
import re
import subprocess
import sys
from pathlib import Path

import ready

import tacit

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")


def test_every_public_name_is_there_and_shown():
    assert [name for name in tacit.__all__ if not hasattr(tacit, name)] == []
    assert set(dir(tacit)) == {*tacit.__all__, "__version__"}


def test_the_page_explains_every_public_name_and_no_other():
    assert set(re.findall(r"^\| \[`tacit\.(\w+)`\]", PAGE, flags=re.M)) == set(tacit.__all__)
    assert set(re.findall(r"^## (\w+)", PAGE, flags=re.M)) == set(tacit.__all__)


def test_public_names_load_torch_only_when_they_are_used():
    code = "import sys, tacit; dir(tacit); print('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "False"


def test_the_python_of_the_page_runs_as_printed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "page.py").write_text(f"import warnings\nwarnings.simplefilter('error')\n{code}")
    done = ready.script(tmp_path / "page.py", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}).wait()
    assert done.returncode == 0, done.stderr
    assert "was started with other data (as many rows, and not the same)" in done.stdout
