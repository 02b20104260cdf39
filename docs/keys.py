"""Writes docs/keys.md: every key of an experiment file, from the sections and the parts themselves. `python docs/keys.py`.

A key's meaning is its `description`, or the comment behind it in the source. A test holds the page against the code.
"""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic_core import PydanticUndefined

from tacit import check, plugin
from tacit.experiment import file
from tacit.experiment.schema import OpenSection, Section
from tacit.parts import losses

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path(__file__).with_name("keys.md")
HEAD = """# Every key of an experiment file

Written by `python docs/keys.py` from the code; do not edit. [Concepts](concepts.md) explains how keys belong
together, and `tacit plan EXPERIMENT` says what they cost. `--set table.key=value` sets any key from the command line.
Behind each key stand its type and its default; without one nothing is set. A table that names a part (a source, a
model, a loss, a rule, an attack) takes that part's own options too: they stand below it. Keys that do not combine are
refused in one sentence that says what to do.
"""
ROOMS = {  # the rooms whose parts a table names: the key that does, and what a part is given beside its options
    "data": [("tacit.data.sources", "name", ())],
    "model": [("tacit.parts.models", "name", ("input_shape", "classes"))],
    "task": [("tacit.parts.tasks", "kind", ("dataset",)), ("tacit.parts.losses", "loss", losses.GIVEN)],
    "metric": [("tacit.parts.metrics", "choose", ())],
    "aggregate": [("tacit.algorithms.rules", "rule", ())],
    "run": [("tacit.report.writers", "writers", ("folder", "facts"))],
    "attack": [("tacit.engine.malicious", "kind", ())],
}
ATTACKS = "tacit.lab.attacks"
Words = dict[str, str]


def sections() -> dict[str, type[Section]]:
    """The tables, and what a table of several kinds has in each: by heading, in the order of the file."""
    found: dict[str, Any] = {}
    for name, kinds in file.sections().items():
        common = next(one for one in next(iter(kinds.values())).__mro__ if one.__name__.endswith("Section"))
        found[f"[{name}]"] = common
        found |= {f"[{name}]` with `{check.in_kind(one)}": one for one in kinds.values() if one is not common}
    return {heading: one for heading, one in found.items() if own_keys(one)}


def own_keys(section: type[Section]) -> list[str]:
    """The keys of a table, or beside its other kinds' those of one kind: `kind` is in the heading, and so is what tells it."""
    above = [one for one in section.__mro__[1:] if one.__name__.endswith("Section") and issubclass(one, Section)]
    base = above[0].model_fields if above and above[0] not in (Section, OpenSection) else {}
    return [key for key in section.model_fields if key not in base]


def comments(thing: Any) -> Words:
    """The comments behind a class's fields or a function's parameters, or above them on a line of their own."""
    source = textwrap.dedent(inspect.getsource(thing))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    alone = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    known = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    said: Words = {}
    for node in ast.walk(ast.parse(source).body[0]):
        name = node.arg if isinstance(node, ast.arg) else getattr(getattr(node, "target", None), "id", None)
        if name and isinstance(node, ast.arg | ast.AnnAssign):
            first = node.lineno - (node.lineno - 1 in alone)
            lines = range(first, (node.end_lineno or node.lineno) + 1)
            said.setdefault(name, "; ".join(known[line] for line in lines if line in known))
    return said


def meanings(section: type[Section]) -> Words:
    """What each key of a section means."""
    own = [cls for cls in reversed(section.__mro__) if issubclass(cls, Section) and cls not in (Section, OpenSection)]
    said = {key: text for cls in own for key, text in comments(cls).items()}
    return {key: field.description or said.get(key, "") for key, field in section.model_fields.items()}


def options(room: str, name: str, given: tuple[str, ...]) -> list[tuple[str, Any, Any, str]]:
    """The options of a part as (key, type, default, meaning)."""
    factory = plugin.find(room, name, key=room)
    layers = reversed(factory.__mro__) if inspect.isclass(factory) else (factory,)
    ours = [thing for thing in layers if thing.__module__.startswith("tacit.")]
    said = {key: text for thing in ours for key, text in comments(thing).items() if text}
    made = (
        {one.name: one.default_factory for one in dataclasses.fields(factory)}
        if dataclasses.is_dataclass(factory)
        else {}
    )
    rows = []
    for key, option in plugin.options(factory, given=given).items():
        value = inspect.signature(factory).parameters[key].default
        fresh = made.get(key, dataclasses.MISSING)
        value = value if fresh is dataclasses.MISSING else typing.cast(Any, fresh)()
        rows.append((key, option.hint, PydanticUndefined if option.required else value, said.get(key, "")))
    return rows


def parts() -> Iterator[tuple[str, str, str, Any]]:
    """Every part that a table names, as (table, key that names it, its name, its options)."""
    for table, rooms in ROOMS.items():
        for room, key, given in rooms:
            for name in plugin.names(room):
                yield table, key, name, options(room, name, given)


def shape(kind: Any) -> str:
    """A type in words.

    >>> shape(int | None), shape(typing.Literal["a", "b"]), shape(tuple[str, ...]), shape(tuple[float, float])
    ('whole number', '"a", "b"', 'list of texts', 'list of numbers')
    """
    if get_origin(kind) is typing.Annotated:
        return shape(get_args(kind)[0])
    if get_origin(kind) is typing.Literal:
        return ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in get_args(kind))
    if get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(shape(part) for part in get_args(kind) if part is not type(None)))
    if get_origin(kind) in (tuple, list) and get_args(kind):
        return "list of " + " or ".join(f"{one}s" for one in shape(get_args(kind)[0]).split(" or "))
    if get_origin(kind) in (list, dict) or kind in (list, dict):
        return "list" if (get_origin(kind) or kind) is list else "table"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(kind, "table")


def default(value: Any) -> str:
    """What holds where nothing is said.

    >>> default(None), default("iid"), default(False), default(PydanticUndefined), default(())
    ('', '; `"iid"`', '; `false`', '; must be said', '')
    """
    if value is PydanticUndefined:
        return "; must be said"
    if value is None or value in ((), {}, [], ""):
        return ""
    return (
        f'; `"{value}"`'
        if isinstance(value, str)
        else f"; `{str(value).lower() if isinstance(value, bool) else value}`"
    )


def row(key: str, kind: Any, value: Any, meaning: str) -> str:
    """A line of a list."""
    return f"- `{key}` ({shape(kind)}{default(value)}): {meaning}"


def page() -> str:
    """The whole page."""
    lines, found, tables = [HEAD, "`name`, above all tables, names the experiment.\n"], list(parts()), sections()
    for heading, section in tables.items():
        said, name = meanings(section), section.table()
        lines.append(f"## `{heading}`\n")
        lines += [
            row(key, one.annotation, one.default, said[key])
            for key in own_keys(section)
            for one in [section.model_fields[key]]
        ]
        lines.append("")
        if heading != f"[{name}]":
            continue
        for _, key, part, rows in [one for one in found if one[0] == name and one[3]]:
            lines += [f'### `{name}.{key} = "{part}"`\n', *(row(*one) for one in rows), ""]
        plain = [f"`{part}`" for table, _, part, rows in found if table == name and not rows]
        lines += [f"Without options of their own: {', '.join(plain)}.\n"] if plain else []
    lines.append("## `tacit attack`\n\nThese are no keys of a file: an attack takes them as `--with key=value`.\n")
    for attack in plugin.names(ATTACKS):
        lines += [
            f"### `tacit attack {attack} --with`\n",
            *(row(*one) for one in options(ATTACKS, attack, ())),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
