"""`report.html`: one self-contained file. Style, script and data are inline; it asks nobody for anything.

The data is a JSON block that the script puts into the page as text, never as markup, so a name cannot become an element;
the content policy allows the one style and the one script by their hashes and nothing else.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tacit
from tacit.compare.comparison_folder import ASKED
from tacit.compare.findings import findings
from tacit.engine.folder import refuse_foreign, replace
from tacit.engine.run_files import read
from tacit.errors import BadInput
from tacit.report.at_sites import sites_view
from tacit.report.attacked import attack_page, matrix_page, shown
from tacit.report.collect import run_page
from tacit.report.cost_together import cost
from tacit.report.overlay import FEDERATION, RESULTS, called, entries, several_page
from tacit.report.searched import is_search, search_page

BEGINS = b"<!doctype html>"  # of every page
SCRIPTS = (
    "base.js",
    "chart.js",
    "heat.js",
    "blocks.js",
    "top.js",
    "forest.js",
    "sites.js",
    "audit.js",
    "attacks.js",
    "personal.js",
    "run.js",
    "search.js",
    "several.js",
    "site.js",
    "live.js",
)


def write_page(folders: Sequence[Path], path: Path, *, quick: bool = False) -> None:
    """Makes the page of a run, a comparison, or several of them; `quick` leaves out prices that take long to compute.

    Raises: BadInput in one sentence, also where another file than a page lies there; then nothing is written.
    """
    refuse_foreign(path, begins=BEGINS)
    content = render(collect(folders, quick=quick)).encode()
    try:
        replace(path, content)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}): name another file with --out.") from None


def collect(folders: Sequence[Path], *, since: int = 0, live: bool = False, quick: bool = False) -> dict[str, Any]:
    """The page's data; a federation is shown by its results."""
    folders = [results_of(folder) for folder in folders]
    if len(folders) == 1 and is_search(folders[0]):
        data = search_page(folders[0])
    elif len(folders) == 1 and only_attacks(folders[0]):
        data = attack_page(folders[0])
    elif len(folders) == 1 and not (folders[0] / ASKED).exists():
        attacked = {} if live else {"findings": shown(findings(folders[0]))}
        files = read(folders[0])
        data = run_page(files, since=since, live=live, quick=quick or live) | attacked | {"sites": sites_view(files)}
        data["folder"] = called(folders[0])
    else:
        name = folders[0].resolve().name if len(folders) == 1 else f"{len(folders)} runs side by side"
        found = entries(folders)
        if len(folders) == 1 and found[0].runs:
            name = found[0].runs[0].experiment.name
        data = several_page(found, name=name)
        data["together"] = cost(folders[0]) if len(folders) == 1 else None
    return printable(data | {"live": live, "tacit": tacit.__version__})


def results_of(folder: Path) -> Path:
    """The folder of a run: of a federation, that of its results. Raises BadInput where nothing has run yet."""
    if not (folder / FEDERATION).is_file():
        return folder
    if not (folder / RESULTS / "experiment.toml").exists():
        raise BadInput(f"The federation in {folder} has not run yet: start it with `tacit deploy server` or `up`.")
    return folder / RESULTS


def only_attacks(folder: Path) -> bool:
    """Whether a folder holds findings of attacks, and neither a run nor a comparison."""
    held = (folder / ASKED).exists() or (folder / "experiment.toml").exists()
    return not held and any(folder.glob("attack-*.json"))


def write_matrix(path: Path, **said: Any) -> None:
    """Writes a page with nothing but a matrix of defences by attacks: what `tacit.report.attacked.matrix_page` takes."""
    data = matrix_page(**said)
    replace(path, render(printable(data | {"live": False, "tacit": tacit.__version__})).encode())


def printable(value: Any) -> Any:
    """The same without infinities, which JSON does not have: an epsilon that is no bound becomes the word "inf".

    >>> printable({"epsilon": [1.5, float("inf")]})
    {'epsilon': [1.5, 'inf']}
    """
    if isinstance(value, dict):
        return {key: printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return "inf" if value == math.inf else value


def render(data: dict[str, Any]) -> str:
    """The page as text."""
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in SCRIPTS)
    connect = "connect-src 'self'; " if data["live"] else ""
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; {connect}"
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy, quote=True),
        "title": html.escape(data["name"]),
        "sentence": html.escape(data.get("sentence") or ""),
        "style": style,
        "script": script,
        "data": as_json(data),
    }
    page = _asset("page.html")
    # one pass over the template: what is put in is never looked at again
    pieces = page.split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def as_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _asset(name: str) -> str:
    return (resources.files("tacit.report") / "html" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
