"""A hook of mkdocs: the notebooks in docs/tutorials become pages, with the outputs that they keep; examples/ lies beside them.

A link to `first-run.ipynb` is right on a web page of the repository and on the site, where the notebook's page has its place; one
to `../examples/own_model.py` or `../experiments/results.md` too, because the site has a copy.
"""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\]\(\.\./(examples/[\w./-]+|experiments/results\.md(?:#[\w-]+)?)\)")
TABLES = "experiments/results.md"  # a page that no list names: results.md leads there

MARK = "~~~~~~"  # longer than any fence in a cell


class Notebook(File):
    """A notebook that counts as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, *, config: Any) -> Files:
    """Puts a page in the place of every notebook."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = Notebook(file.src_uri, file.src_dir, file.dest_dir, use_directory_urls=config.use_directory_urls)
        files.remove(file)
        files.append(page)
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in (".py", ".toml"):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))
    path = str(ROOT / TABLES)
    files.append(File.generated(config, TABLES, abs_src_path=path, inclusion=InclusionLevel.NOT_IN_NAV))
    files.append(File.generated(config, "reference.md", content=_reference()))
    return files


def _reference() -> str:
    """The page of every public name, made from the code."""
    spec = importlib.util.spec_from_file_location("reference", Path(__file__).with_name("reference.py"))
    if spec is None or spec.loader is None:
        raise ImportError("docs/reference.py is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page()


def on_page_read_source(page: Any, *, config: Any) -> str | None:
    """The Markdown of a notebook; other pages are read as they are, but for links to examples, of which the site has copies."""
    if page.file.abs_src_path is None:  # made here
        return None
    if not page.file.src_uri.endswith(".ipynb"):
        return OUTSIDE.sub(r"](\1)", Path(page.file.abs_src_path).read_text("utf-8"))
    with open(page.file.abs_src_path, encoding="utf-8") as file:
        return markdown(json.load(file))


def markdown(book: dict[str, Any]) -> str:
    """Cells and their outputs, one after the other.

    >>> print(markdown({"cells": [{"cell_type": "markdown", "source": ["# One"]}]}))
    # One
    """
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"{MARK}python\n{source}\n{MARK}")
        for output in cell["outputs"]:
            text = "".join(output["text"] if "text" in output else output["data"]["text/plain"]).strip("\n")
            parts.append(f"{MARK}text\n{text}\n{MARK}")
    return "\n\n".join(parts)
