"""Every page of the documentation is in the site's list, once, and the site asks nobody else for anything."""

import ast
import contextlib
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from browser import CHROMIUM, WHY_NOT, Browser
from docs_pages import PAGES, ROOT, made, text_of
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app


def test_the_site_lists_every_page_once():
    listed = re.findall(r"([\w-]+\.(?:md|ipynb))", (ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.ipynb")]
    assert sorted(listed) == sorted(["reference.md", *(path.name for path in pages)])  # the one that the site makes


def test_the_site_loads_no_font_and_no_script_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in text
    assert "http" not in text
    assert "extra_javascript" not in text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


class Links(HTMLParser):
    """Where a page leads, and what in it can be led to."""

    def __init__(self, text):
        super().__init__()
        self.leads, self.places = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        self.places |= {value for key, value in attrs if value and (key == "id" or (tag == "a" and key == "name"))}
        self.leads |= {said[key] for key in ("href", "src") if said.get(key)}


@pytest.mark.notebooks
def test_every_link_of_the_site_leads_to_a_file_and_an_anchor_of_it(site):
    pages = {path.resolve(): Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    dead, followed = [], 0
    for page, links in pages.items():
        for link in links.leads:
            address = urlsplit(link)
            if address.scheme or address.netloc or page.name == "404.html":
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            target = target / "index.html" if target.is_dir() else target
            inside, anchor = target.is_relative_to(site.resolve()), unquote(address.fragment)
            found = (
                inside and target.is_file() and (not anchor or target not in pages or anchor in pages[target].places)
            )
            followed += 1
            dead += [] if found else [f"{page.name}: {link}"]
    assert dead == []
    assert followed > 2000
    assert "examples/flower_plain_client.py" in pages[(site / "how-to-deploy.html").resolve()].leads


TYPE = """(() => {
    const field = document.querySelector("input.md-search__input");
    field.focus();
    field.value = "Bagdasaryan";
    field.dispatchEvent(new KeyboardEvent("keyup", {key: "n", bubbles: true}));
})()"""
FOUND = "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.getAttribute('href'))"


@pytest.mark.notebooks
@pytest.mark.skipif(not CHROMIUM, reason=WHY_NOT)
def test_the_site_is_searched_when_it_is_opened_from_disk(site):
    with Browser() as browser:
        browser.open((site / "index.html").resolve().as_uri())
        browser.value(TYPE)
        browser.wait(f"{FOUND}.length > 0")
        assert any("attacks.html" in link for link in browser.value(FOUND))
        assert browser.complaints() == []


@pytest.mark.notebooks
def test_the_site_shows_what_notebooks_print_and_asks_nobody_for_anything(site):
    assert "record-level differential privacy" in (site / "tutorials" / "first-run.html").read_text("utf-8")
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.search(
            r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+rel=\"stylesheet\"[^>]+https?:", text
        ), page
        assert 'class="mermaid"' not in text, f"{page}: the theme would fetch a script for it"


def test_every_command_and_option_is_on_its_page_as_the_program_has_it():
    commands = made("commands")
    assert commands.page().count("\n## `tacit ") > 12
    rows = [line.removeprefix("- ").split(": ") for line in commands.page().splitlines() if line.startswith("- `")]
    assert [name for name, *meaning in rows if not "".join(meaning).strip()] == []
    assert len(rows) > 60


def test_help_in_a_terminal_says_what_an_argument_is():
    for words, said in (
        (["run", "--help"], "A TOML file or a shipped"),
        (["ledger", "show", "--help"], "A ledger, or the folder"),
    ):
        assert said in " ".join(CliRunner().invoke(app, words).output.split())


def test_every_public_name_is_in_the_reference_with_what_it_does():
    reference = made("reference")
    names = [f"{module}.{name}" for module, found in reference.sections().items() for name, _ in found]
    assert len(names) > 50
    for module, found in reference.sections().items():
        for name, thing in found:
            undone = [member for member, _ in reference.members(thing) if not inspect.getdoc(getattr(thing, member))]
            assert reference.said_of(thing, name, module), f"{module}.{name}"
            assert not undone, f"{module}.{name}: {undone}"


def test_every_name_that_pages_and_examples_import_is_in_the_reference():
    known = made("reference").page()
    codes = [code for page in PAGES for code in re.findall(r"```python\n(.*?)```", text_of(page), re.S)]
    codes += [path.read_text("utf-8") for path in (ROOT / "examples").rglob("*.py")]
    imported = set()
    for code in codes:
        plain = "\n".join(
            line for line in code.splitlines() if not line.startswith("!")
        )  # what a notebook gives to a shell
        with contextlib.suppress(SyntaxError):  # a part of a file, shown alone
            for node in ast.walk(ast.parse(plain)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tacit":
                    imported |= {f"{node.module}.{one.name}" for one in node.names}
    assert len(imported) > 15
    assert sorted(name for name in imported if f"### {name}\n" not in known and f"## `{name}`\n" not in known) == []


OTHER_WORDS = re.compile(
    r"data against none|adding or removing one (?:record|client)|remov(?:e|ing) the whole client|zero-out"
)
RELATIONS = (
    "add or remove one record of one client",
    "empty one client (its update is then zero)",
)


LABELS = re.compile(r"if one would|neighbouring data")  # the one label is "the change"


def everything_people_read():
    """Code, pages, notebooks, benchmarks, studies and documents."""
    kinds = {"tacit": ("*.py", "*.js", "*.html"), "docs": ("*.md", "*.ipynb"), "bench": ("*.py", "*.md")}
    kinds |= {"experiments": ("*",), "examples": ("*.py", "*.md", "*.toml")}
    found = [path for room, names in kinds.items() for name in names for path in (ROOT / room).rglob(name)]
    known = [
        path for path in found if path.is_file() and path.suffix in {".py", ".js", ".html", ".md", ".ipynb", ".toml"}
    ]
    assert {path.suffix for path in known} == {".py", ".js", ".html", ".md", ".ipynb", ".toml"}
    return [*known, ROOT / "README.md"]


def test_the_change_has_one_label_everywhere():
    assert [path for path in everything_people_read() if LABELS.search(path.read_text("utf-8"))] == []
    from tacit.report.closing import promise_lines

    promise = {"epsilon": {"min": 1, "median": 1, "max": 1}, "delta": 1e-5, "unit": "record", "randomness": "a seed"}
    promise |= {"relation": RELATIONS[0], "adversary": "all", "accountant": "PLD", "sampler": "none", "assumes": []}
    assert ("the change", RELATIONS[0]) in promise_lines(promise)
    assert '["the change", promise.relation]' in (ROOT / "tacit/report/html/blocks.js").read_text("utf-8")
    assert "| **the change** |" in (ROOT / "docs" / "glossary.md").read_text("utf-8")


def test_the_change_that_an_epsilon_is_for_has_one_wording():
    """The words are in guarantee.py, the glossary has all of them, and nobody else writes them down or has others."""
    source = (ROOT / "tacit" / "privacy" / "guarantee.py").read_text("utf-8")
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    for words in RELATIONS:
        assert f'"{words}"' in source
        assert f"*{words}*" in glossary
    for path in everything_people_read():
        text = path.read_text("utf-8")
        assert not OTHER_WORDS.search(text), (path, OTHER_WORDS.search(text))
        assert path.name == "guarantee.py" or not any(f'"{words}"' in text for words in RELATIONS), path


LONGEST_CELL = 300  # characters: what is longer is a paragraph


def test_no_cell_of_a_table_is_a_paragraph():
    long = []
    for path in (*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "bench" / "README.md"):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            line = re.sub(r"`tests/[^`]*`(<br>)?", "", line)  # names of tests are a list, not a paragraph
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|")) if line.lstrip().startswith("|") else []
            long += [f"{path.name}:{number}: {cell[:60]}" for cell in cells if len(cell.strip()) >= LONGEST_CELL]
    assert long == []


def test_the_page_beside_others_names_this_version():
    text = (ROOT / "docs" / "beside.md").read_text("utf-8")
    assert f"Tacit {tacit.__version__}" in text
    assert f"| | Tacit {tacit.__version__.rpartition('.')[0]} |" in text
