"""The pages that people read: those that scripts write, with their scripts; and the commands that pages tell people to type."""

import importlib.util
import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer

from tacit.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = ("keys", "commands", "reference")  # by scripts; they name commands and tell nobody to type them
PAGES = (
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "bench/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")),
)
PROGRAM = r"(?:\.venv/bin/)?(?:tacit|python|make)"
INLINE = re.compile(rf"(?<!`)`({PROGRAM} [^`]+)`")
LINE = re.compile(rf"^ *((?:! ?)?{PROGRAM} \S(?:[^\\\n]|\\\n|\\.)*)$", re.M)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.M | re.S)
LEFT = re.compile(
    r"…|\.\.\.|\[--|\[[A-Z]|\bor\b|\bCOMMAND\b|[A-Z]\w+=\S*\$"
)  # to the reader: no command that can be typed
NAMES = re.compile(r"(?<![\w.-])(?:[A-Z][A-Z_]*)(?![\w=.-])|DIR/|sites/NAME|/NAME")
SHELL = re.compile(r'^ *([A-Z]+)="([^"$]*)"', re.M)
END = re.compile(r"\s+#\s.*|,? (?:&&|\|\|?|>|;) .*", re.S)


def made(name):
    """The script that writes a page; the page is held against it."""
    found = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    if hasattr(script, "PAGE"):  # else the site makes it
        assert script.PAGE.read_text("utf-8") == script.page(), f"run `python docs/{name}.py`"
    return script


@dataclass(frozen=True)
class Command:
    """A command as a page has it; `refused` where the page says so by a `!`, `note` is the comment behind it, and
    `block` the kind of the fence around it: a cell of a notebook is "python".
    """

    line: str
    refused: bool = False
    note: str = ""
    block: str | None = None

    @property
    def words(self):
        return shlex.split(self.line)

    @property
    def program(self):
        return self.words[0].rpartition("/")[2]


def text_of(path):
    """The Markdown of a page; of a notebook what it says, and its cells as code."""
    if path.suffix != ".ipynb":
        return path.read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    parts = ["".join(cell["source"]) for cell in cells]
    return "\n\n".join(
        part if cell["cell_type"] == "markdown" else f"```python\n{part}\n```"
        for cell, part in zip(cells, parts, strict=True)
    )


def commands(path):
    """Every command of a page in its order: in indented and fenced blocks, and in code within a line."""
    found, text = [], text_of(path)
    for name, value in SHELL.findall(text):
        text = text.replace(f"${name}", " ".join(value.split()))
    fenced = [(match.start(), match.end(), match[2]) for match in FENCE.finditer(text)]
    for match in LINE.finditer(text):
        kind = next((kind for start, end, kind in fenced if start < match.start() < end), None)
        indented = match[0].startswith("    ")
        if kind in ("sh", "", "bash") or (kind is None and indented) or (kind == "python" and match[1].startswith("!")):
            found.append((match.start(), match[1], kind))
    prose = FENCE.sub(lambda match: " " * len(match[0]), text)
    found += [(match.start(), match[1].replace("\n", " "), None) for match in INLINE.finditer(prose)]
    for _, line, kind in sorted(found, key=lambda one: one[0]):
        yield from parts_of(line.replace("\\\n", " "), kind)


def parts_of(line, block=None):
    """The commands of a line; what is left to the reader is none."""
    note = line.partition(" # ")[2]
    refused = line.startswith("! ") and block != "python"
    for part in re.split(r" && |, then ", line.lstrip("! ")):
        whole = " ".join((part if part.startswith("python -c") else END.sub("", part)).split())
        if re.match(PROGRAM, whole) and not LEFT.search(whole):
            yield Command(whole.replace(".venv/bin/", ""), refused, note, block)


def named_only(command):
    """Whether a page only speaks of a command: it has a place for a name, or nothing behind the command's own words."""
    return bool(NAMES.search(command.line)) or (command.program == "tacit" and known(command)[1] in ([], ["--resume"]))


@cache
def whole():
    """The program's tree of commands."""
    return typer.main.get_command(app)


def known(command):
    """The program's own command that a line calls, and the words behind it."""
    found, words = whole(), command.words[1:]
    while hasattr(found, "commands") and words and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    if "show" in getattr(found, "commands", {}) and words and not words[0].startswith("--"):
        found = found.commands["show"]  # it may be left out
    return found, words
