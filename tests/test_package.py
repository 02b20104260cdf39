"""The package as somebody gets it: built, installed without the repository."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parent.parent


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


def fresh(place):
    """A fresh environment that downloads nothing: its own packages, then those of this Python but for its `.pth` files."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = (place / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return place / "bin"


@pytest.mark.package
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_built_is_installed_in_a_fresh_environment_and_runs_there(built, kind, tmp_path):
    programs, out = fresh(tmp_path / "venv"), tmp_path / "elsewhere"
    out.mkdir()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))
    }

    def call(*words):
        env = clean | {"OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(words, cwd=out, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    file = built[("wheel", "sdist").index(kind)]
    words = ("install", "--no-deps", "--no-index", "--ignore-installed", "--no-build-isolation", str(file))
    call(programs / "python", "-m", "pip", *words)
    where = call(programs / "python", "-c", "import tacit; print(tacit.__file__)")
    assert where.startswith(str(tmp_path / "venv")), where
    assert tacit.__version__ in call(programs / "tacit", "--version")
    call(programs / "tacit", "run", "digits", "--set", "train.rounds=1", "--out", "run")
    assert {"summary.json", "report.html", "ledger.db"} <= {path.name for path in (out / "run").iterdir()}


def test_the_version_is_named_once_and_cited():
    assert f"version: {tacit.__version__}" in (ROOT / "CITATION.cff").read_text("utf-8")
