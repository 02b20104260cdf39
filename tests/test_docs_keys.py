"""Every key of an experiment file, and every option of a part, is on the page of keys, as the code has it."""

import re

from docs_pages import ROOT, made

from tacit import plugin

ROOM = re.compile(r'^ROOM = "([\w.]+)"', re.M)


def test_every_key_of_an_experiment_file_is_on_its_page_with_a_meaning_as_the_code_has_it():
    keys = made("keys")
    page = keys.PAGE.read_text("utf-8")
    for name, section in keys.sections().items():
        assert [
            key for key, text in keys.meanings(section).items() if not text and key in keys.own_keys(section)
        ] == [], name
        assert f"## `{name}`" in page
    assert "None" not in page


def test_every_option_of_every_part_is_on_the_page_of_keys_with_a_meaning():
    """As many as the factories themselves take, and every room that a table of an experiment names."""
    keys = made("keys")
    found, tables = list(keys.parts()), page_tables(keys.PAGE.read_text("utf-8"))
    assert len(found) > 40
    for table, key, name, rows in found:
        assert [option for option, _, _, meaning in rows if not meaning] == [], name
        assert tables.get(f'### `{table}.{key} = "{name}"`', []) == [option for option, *_ in rows], name
    assert {"horizon", "caution"} == set(tables['### `aggregate.rule = "random-effects"`'])
    assert {"numeric", "missing", "client_column"} < set(tables['### `data.name = "csv"`'])
    for name in plugin.names(keys.ATTACKS):
        rows = keys.options(keys.ATTACKS, name, ())
        assert [option for option, _, _, meaning in rows if not meaning] == [], name
        assert tables[f"### `tacit attack {name} --with`"] == [option for option, *_ in rows]
    rooms = {room for one in keys.ROOMS.values() for room, *_ in one}
    named = {room for path in (ROOT / "tacit").rglob("*.py") for room in ROOM.findall(path.read_text("utf-8"))}
    assert named == rooms | {"tacit.lab.attacks"}  # those are from the command line, and at the end of the page


def page_tables(text):
    """The keys of every list of a page, by the heading above it."""
    found, heading = {}, ""
    for line in text.splitlines():
        heading = line if line.startswith("#") else heading
        if line.startswith("- `"):
            found.setdefault(heading, []).append(line.split("`")[1])
    return found
