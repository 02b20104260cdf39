"""The package as somebody gets it: built, installed without the repository, and without what only some systems have."""

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
HIDDEN = "import sys; sys.modules['fcntl'] = None\n"
ELSEWHERE = (
    HIDDEN
    + """
import multiprocessing.context, os
for name in ("fchmod", "getuid", "geteuid", "fork"):
    delattr(os, name)
del multiprocessing.context._concrete_contexts["fork"]
from tacit.cli import main
def tacit(*words):
    sys.argv = ["tacit", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0
"""
)  # what Windows' Python 3.11 and 3.12 lack, hidden before the first import of Tacit


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


@pytest.mark.package
def test_every_room_but_flowers_is_imported_where_there_is_no_fcntl(tmp_path):
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "tacit").rglob("*.py"))
        if "_triton" not in path.name and path.name != "__main__.py" and "server" not in path.parts
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


def test_a_run_is_made_and_resumed_where_there_is_no_fork_no_file_mode_and_no_owner(tmp_path):
    code = ELSEWHERE + (
        "words = ('--set', 'train.rounds=2', '--set', 'run.workers=2', '--out', 'run')\n"
        "assert tacit('run', 'digits', *words) == 0\n"
        "for name in ('summary.json', 'model.safetensors'): os.remove(f'run/{name}')\n"
        "assert tacit('run', '--resume', '--out', 'run') == 0\n"
        "assert os.path.exists('run/summary.json')"
    )
    python(code, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_secrets_are_refused_in_one_sentence_where_no_file_mode_keeps_them(tmp_path):
    code = ELSEWHERE + (
        "assert tacit('keys', 'new', 'keys', '--bits', '2048') == 2\n"
        "words = ('--set', 'train.rounds=1', '--set', 'run.randomness=os', '--out', 'run')\n"
        "assert tacit('run', 'digits', *words) == 2\n"
        "from pathlib import Path; from tacit.errors import KeyRefused; from tacit.crypto import keys as owner_files\n"
        "Path('key').write_text('{}'); os.chmod('key', 0o600)\n"
        "try: owner_files.read(Path('key'), secret=True)\n"
        "except KeyRefused as error: print(error)\n"
        "print(owner_files.read(Path('key'), secret=False))"
    )
    said = python(code, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert said.splitlines()[-2:] == [
        "key is a secret, and this system has no file modes that keep it from other users: use Linux or macOS.",
        "{}",
    ]
    assert not (tmp_path / "keys").exists() or not list((tmp_path / "keys").iterdir())
    assert not (tmp_path / "run").exists()


def test_the_version_is_named_once_and_cited():
    assert f"version: {tacit.__version__}" in (ROOT / "CITATION.cff").read_text("utf-8")
