"""Imports go downwards: every room uses what is below it, in the order that docs/architecture.md writes down."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
OPEN = {"tacit", "tacit.__main__"}  # the public names, loaded when they are used


def layers():
    """The rooms from the lowest to the highest, as the page lists them."""
    listed = PAGE.read_text("utf-8").partition("<!-- layers -->")[2].partition("<!-- /layers -->")[0]
    rows = [line.split("|")[1] for line in listed.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([\w.]+)`", row) for row in rows][::-1]


LEVEL = {room: level for level, rooms in enumerate(layers()) for room in rooms}


def room(module):
    parts = module.split(".")[1:]
    while parts and ".".join(parts) not in LEVEL:
        parts = parts[:-1]
    return ".".join(parts)


def modules():
    for path in sorted((ROOT / "tacit").rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


def imported(path, known):
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
            for name in node.names:
                yield f"{node.module}.{name.name}" if f"{node.module}.{name.name}" in known else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("tacit."))


def upward(found):
    """Imports of a room that is not below the importing one, as (module, imported)."""
    known = {name for name, _ in found}
    for name, path in found:
        for other in imported(path, known):
            mine, theirs = room(name), room(other)
            if mine and theirs and mine != theirs and LEVEL[theirs] >= LEVEL[mine]:
                yield name, other


def test_every_import_goes_to_a_lower_room():
    assert list(upward(list(modules()))) == []


def test_every_module_has_a_room_and_every_room_is_there():
    assert [
        name
        for name, _ in modules()
        if not room(name) and name not in OPEN | {"tacit.lab", "tacit.parts", "tacit.privacy"}
    ] == []
    for name in LEVEL:
        place = ROOT / "tacit" / Path(*name.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_every_folder_with_modules_is_a_package_that_is_installed():
    folders = {path.parent for path in (ROOT / "tacit").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_an_import_that_goes_up_is_found(tmp_path):
    path = tmp_path / "wire.py"
    path.write_text("def late():\n    from tacit.cli.app import main\n", "utf-8")
    assert list(upward([("tacit.wire", path), ("tacit.cli.app", ROOT / "tacit" / "cli" / "app.py")])) == [
        ("tacit.wire", "tacit.cli.app")
    ]


@pytest.mark.parametrize("words", [["--check"]])
def test_the_picture_of_the_rooms_is_made_of_the_imports_as_they_are(words):
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "rooms.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
