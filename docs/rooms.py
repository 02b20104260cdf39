"""Draws the rooms of tacit/ and their imports into docs/architecture.md: `python docs/rooms.py`, or `--check` to compare."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- picture -->", "<!-- /picture -->"
LOW = {
    "errors",
    "check",
    "machine",
    "random",
    "types",
    "plugin",
    "digest",
}  # used by everybody: their arrows say nothing


def rooms(text: str) -> list[str]:
    """The rooms that the page lists."""
    listed = text.partition("<!-- layers -->")[2].partition("<!-- /layers -->")[0]
    rows = [line.split("|")[1] for line in listed.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]


def room(module: str, known: list[str]) -> str:
    """The room of a module; empty where it has none."""
    parts = module.split(".")[1:]
    while parts and ".".join(parts) not in known:
        parts = parts[:-1]
    return ".".join(parts)


def arrows(known: list[str]) -> set[tuple[str, str]]:
    """Which room imports which."""
    files = {
        path: path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "tacit").rglob("*.py")
    }
    names, found = set(files.values()), set()
    for path, name in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
                for alias in node.names:
                    other = f"{node.module}.{alias.name}"
                    found.add((room(name, known), room(other if other in names else str(node.module), known)))
    return {(mine, theirs) for mine, theirs in found if mine and theirs and mine != theirs}


def picture(known: list[str]) -> str:
    """The rooms as a graph; an arrow that follows from two others is left out."""
    edges = {(a, b) for a, b in arrows(known) if not {a, b} & LOW}
    direct = sorted((a, b) for a, b in edges if not any((a, c) in edges and (c, b) in edges for c in known))
    lines = [f"  {a.replace('.', '_')}[{a}] --> {b.replace('.', '_')}[{b}]" for a, b in direct]
    return "\n".join([BEGIN, "```mermaid", "graph TD", *lines, "```", END])


def main() -> int:
    """Writes the picture, or says that it is not the present one."""
    text = PAGE.read_text("utf-8")
    new = text[: text.index(BEGIN)] + picture(rooms(text)) + text[text.index(END) + len(END) :]
    if "--check" not in sys.argv:
        PAGE.write_text(new, "utf-8")
    elif new != text:
        print("The picture of the rooms is not that of the imports: run `python docs/rooms.py`.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
