"""axe-core finds nothing wrong with a page, in light and in dark, on a phone and on a desk.

axe-core is no part of Tacit: `make axe` installs it, or TACIT_AXE names its axe.min.js; without it these tests skip.
"""

import os
from pathlib import Path

import pytest
from redteam.lying_server import RUN
from report.test_site_page import ASKS, asked

from tacit.deploy.operate.site_page import write_site_page
from tacit.deploy.site import models

PLACE = Path(__file__).parents[2] / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
AXE = Path(os.environ.get("TACIT_AXE") or PLACE)
READY = "document.documentElement.dataset.ready === 'yes'"
VIOLATIONS = "axe.run().then(found => found.violations.map(v => `${v.id}: ${v.help} (${v.nodes.map(n => n.target).join(', ')})`))"

pytestmark = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (make axe, or TACIT_AXE)")


@pytest.fixture(scope="module")
def pages(ended, compared, attacked, deployed, evil, tmp_path_factory):
    """The files of the pages, by what they are of."""
    site = asked(tmp_path_factory.mktemp("site") / "north", ASKS)
    models.adapt(site, RUN)
    write_site_page(site)
    folders = {"run": ended, "comparison": compared, "deployment": deployed, "names": evil, "site": site}
    return {name: folder / "report.html" for name, folder in folders.items()} | {"attack": attacked}


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["run", "comparison", "attack", "deployment", "names", "site"])
def test_axe_finds_no_violation(browser, pages, name, dark, width):
    browser.open(pages[name].resolve().as_uri(), width=width, dark=dark)
    browser.wait(READY)
    browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.value(f"{AXE.read_text('utf-8')};0")
    assert browser.value(VIOLATIONS) == []


def test_axe_looks_at_contrast_and_names(browser, pages):
    browser.open(pages["run"].resolve().as_uri())
    browser.wait(READY)
    browser.value(
        "document.querySelector('h1').style.color = '#eee'; document.querySelector('nav').innerHTML = '<img>'"
    )
    browser.value(f"{AXE.read_text('utf-8')};0")
    found = "\n".join(browser.value(VIOLATIONS))
    assert "color-contrast" in found
    assert "image-alt" in found
