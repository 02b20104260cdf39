"""Every page of the documentation is in the site's list, once, and the site asks nobody else for anything."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_site_lists_every_page_once():
    listed = re.findall(r"([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text("utf-8"))
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_site_loads_no_font_and_no_script_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in text
    assert "http" not in text
    assert "extra_javascript" not in text


def made(name):
    """The script that writes a page; the page is held against it."""
    found = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    assert script.PAGE.read_text("utf-8") == script.page(), f"run `python docs/{name}.py`"
    return script


def test_every_key_of_an_experiment_file_is_on_its_page_with_a_meaning_as_the_code_has_it():
    keys = made("keys")
    for name, section in keys.sections().items():
        assert [key for key, text in keys.meanings(section).items() if not text] == [], name


def test_every_command_and_option_is_on_its_page_as_the_program_has_it():
    commands = made("commands")
    assert commands.page().count("\n## `tacit ") > 20
