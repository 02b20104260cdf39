"""Runs the tutorials in docs/tutorials as a reader would, in an empty folder, and keeps what they print.

    python docs/notebooks.py                # all of them; outputs are written into the notebooks
    python docs/notebooks.py --check NAME   # one of them; nothing is written. A cell that fails, or now prints another version
                                            # or a table with other headings than it keeps, ends it with an error

Kept outputs hold no path of a machine, no clock and no duration: `cleaned` takes them out, and a test looks for what is left.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
SECONDS = 300  # for one cell, on a busy machine
DURATION = re.compile(r"\b\d+(\.\d+)? (?=(s|ms|seconds|minutes)\b)")
CLOCK = re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?")
VERSION = re.compile(r"\bTacit \d[\w.]*\w")
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")  # what a terminal is told: colours, and where to write
STRICT = """
def strict(command, shell=get_ipython(), plain=get_ipython().system):
    plain(command)
    if shell.user_ns["_exit_code"]:
        raise RuntimeError(f"{command}: exit code {shell.user_ns['_exit_code']}")
get_ipython().system = strict
"""  # Jupyter goes on after a command that failed; here that ends the notebook
SPINNER = re.compile(r"^[⠀-⣿].*\n?", re.M)


def surroundings(place: Path) -> dict[str, str]:
    """The environment of a kernel: this repository's Tacit, this Python's `tacit`, nothing of whoever runs it."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    own = {"HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"}
    folders = {name: str(place / name.lower()) for name in own}
    more = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    more["SHELL"] = "/bin/sh"  # what a reader's shell understands, whichever it is
    return os.environ | folders | more | {"JUPYTER_PLATFORM_DIRS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells print in an empty folder. Raises: CellExecutionError where a cell or a command fails."""
    book = nbformat.read(path, as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(surroundings(Path(place)))
        work = Path(place, "work")
        work.mkdir()
        client = NotebookClient(book, timeout=SECONDS, kernel_name="python3", record_timing=False)
        client.execute(cwd=str(work))
        del book.cells[0]
        return cleaned(book, place)


def cleaned(book: nbformat.NotebookNode, place: str) -> nbformat.NotebookNode:
    """The notebook with outputs that would be the same elsewhere, but for chance; what went to stderr is not kept."""
    book.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.execution_count -= 1  # the first was ours
        kept: list[nbformat.NotebookNode] = []
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                continue
            if kept and output.output_type == kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
            kept.append(output)
        for output in kept:
            if output.output_type == "stream":
                output.text = anywhere(output.text, place)
            else:  # a table of pandas has HTML too: its text is enough, and reads the same in a diff
                output.metadata, output.execution_count = {}, cell.execution_count
                output.data = {"text/plain": anywhere(output.data["text/plain"], place)}
        cell.outputs = kept
    return book


def anywhere(text: str, place: str) -> str:
    """A text without the folder it was made in, without clocks, durations and colours, and without blanks at the ends of lines."""
    text = SPINNER.sub("", STYLE.sub("", text)).replace(f"{place}/work/", "").replace(place, "…")
    text = CLOCK.sub(lambda found: "(when)".ljust(len(found[0])), DURATION.sub("… ", text))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def headings(text: str) -> list[str]:
    """What does not change by chance: versions, and the headings of tables, however wide their columns are.

    >>> headings("Tacit 0.2.0, flwr\\n┏━━┓\\n┃ noise ┃ per ┃\\n┃ multiplier ┃     ┃\\n┡━━┩")
    ['Tacit 0.2.0', 'noise multiplier | per']
    >>> headings("\\n noise  per \\n ──────────── \\n 1   2")
    ['noise per']
    """
    found, rows, above = VERSION.findall(text), [], []
    for line in text.splitlines():
        if line.strip() and not line.strip(" ─"):  # a table without lines between its columns
            found.append(" ".join(" ".join(above).split()))
        above = [*above, line] if line.strip() else []
        if line.startswith("┃"):
            rows.append([cell.strip() for cell in line.strip("┃").split("┃")])
        elif rows:
            found.append(" | ".join(" ".join(filter(None, cells)) for cells in zip(*rows, strict=True)))
            rows = []
    return found


def outputs(cell: nbformat.NotebookNode) -> str:
    """What a cell prints, as one text."""
    return "".join(one.text if "text" in one else one.data["text/plain"] for one in cell.get("outputs", ()))


def stale(kept: nbformat.NotebookNode, now: nbformat.NotebookNode) -> list[str]:
    """The cells that keep other headings than they print now, each with both."""
    pairs = [(headings(outputs(a)), headings(outputs(b))) for a, b in zip(kept.cells, now.cells, strict=True)]
    return [f"cell {number}: kept {old}, printed {new}" for number, (old, new) in enumerate(pairs, 1) if old != new]


def main(words: list[str]) -> None:
    """Runs what is named, or all; writes unless `--check` is said."""
    names = [word for word in words if word != "--check"]
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        book = run(path)
        if "--check" not in words:
            nbformat.write(book, path)
        elif found := stale(nbformat.read(path, as_version=4), book):
            sys.exit("\n".join((f"{path.name}: run `python docs/notebooks.py {path.stem}`", *found)))
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
