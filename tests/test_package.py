"""The package as somebody gets it: built, installed without the repository, and without what only some systems have."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parent.parent
HIDDEN = "import sys; sys.modules['fcntl'] = None\n"


def python(code, *, cwd, **more):
    env = os.environ | {"OMP_NUM_THREADS": "1"} | more
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("setuptools", "77", reason="building needs setuptools 77")
    out = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source") / "tacit"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("the sources are not a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools import build_meta as b; print(b.build_wheel(r'{out}'), b.build_sdist(r'{out}'))"
    wheel, source = python(code, cwd=copy).splitlines()[-1].split()
    return out / wheel, out / source


@pytest.mark.package
def test_a_wheel_has_every_module_experiment_and_page_and_says_that_it_is_typed(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    wanted = [
        path.relative_to(ROOT) for path in (ROOT / "tacit").rglob("*") if path.suffix in (".py", ".toml", ".js", ".css")
    ]
    assert {str(path) for path in wanted} <= names
    assert "tacit/py.typed" in names
    assert not [name for name in names if not name.startswith("tacit")]


@pytest.mark.package
def test_an_sdist_holds_what_a_wheel_is_built_from(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "tacit/__init__.py", "tacit/report/html/page.html"} <= names


@pytest.mark.package
def test_the_wheel_alone_runs_an_experiment(built, tmp_path):
    place = tmp_path / "site"
    zipfile.ZipFile(built[0]).extractall(place)
    code = (
        f"import tacit; assert tacit.__file__.startswith({str(place)!r}), tacit.__file__\n"
        "from tacit.cli import main; import sys\n"
        "sys.argv = ['tacit', 'run', 'digits', '--out', 'run', '--set', 'train.rounds=1', '--set', 'run.workers=1']\n"
        "main()"
    )
    try:
        python(code, cwd=tmp_path, PYTHONPATH=str(place))
    finally:
        found = sorted(path.name for path in (tmp_path / "run").glob("*")) if (tmp_path / "run").exists() else []
    assert {"summary.json", "report.html", "ledger.db"} <= set(found)


@pytest.mark.package
def test_every_room_but_flowers_is_imported_where_there_is_no_fcntl(tmp_path):
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "tacit").rglob("*.py"))
        if "_triton" not in path.name and path.name != "__main__.py" and "flower" not in path.parts
        and "writers" not in path.parts
    ]  # fmt: skip
    python(HIDDEN + "import importlib\nfor name in " + repr(names) + ": importlib.import_module(name)", cwd=tmp_path)


def test_without_fcntl_two_processes_still_keep_out_of_one_folder(tmp_path):
    code = HIDDEN + (
        "import os, subprocess\nfrom tacit.machine import lock, locked, fcntl\nassert fcntl is None\n"
        "file = os.open('lock', os.O_CREAT | os.O_RDWR)\nlock(file)\n"
        "other = 'import sys; sys.modules[\"fcntl\"] = None; import os; from tacit.machine import lock;'"
        " + 'lock(os.open(\"lock\", os.O_RDWR))'\n"
        "print(subprocess.run([sys.executable, '-c', other], capture_output=True, text=True).stderr[-200:])\n"
        "os.close(file)\n"
        "file = os.open('lock', os.O_RDWR)\nwith locked(file): pass\nos.close(file)\n"
        "print(subprocess.run([sys.executable, '-c', other]).returncode)"
    )
    said = python(code, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert "Error" in said
    assert said.splitlines()[-1] == "0"


def test_the_version_is_named_once_and_cited():
    assert f"version: {tacit.__version__}" in (ROOT / "CITATION.cff").read_text("utf-8")
