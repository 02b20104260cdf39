"""Every page of the documentation is in the site's list, once, and the site asks nobody else for anything."""

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
