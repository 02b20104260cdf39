"""Writes docs/keys.md: every key of an experiment file, from the sections themselves. `python docs/keys.py`.

A key's meaning is its `description`, or the comment behind it in the source; a test holds the page against the code.
"""

import ast
import inspect
import io
import textwrap
import tokenize
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic_core import PydanticUndefined

from tacit.experiment import Experiment
from tacit.experiment.section import OpenSection, Section

PAGE = Path(__file__).with_name("keys.md")
HEAD = """# Every key of an experiment file

Written by `python docs/keys.py` from the code; do not edit. [Concepts](concepts.md) explains how they belong together, and
`tacit plan EXPERIMENT` says what they cost. Any key can be set from the command line as `--set table.key=value`. "–": nothing is
set, and what then happens is said beside it. A table that names a part (a data source, a model, a rule, an attack) takes that
part's own options too.
"""


def sections() -> dict[str, type[Section]]:
    """The tables by name, in the order of the file."""
    found = {}
    for name, field in Experiment.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if inspect.isclass(kind) and issubclass(kind, Section):
                found[name] = kind
    return found


def meanings(section: type[Section]) -> dict[str, str]:
    """What each key of a section means."""
    said: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if not issubclass(cls, Section) or cls in (Section, OpenSection):
            continue
        source = textwrap.dedent(inspect.getsource(cls))
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        (body,) = ast.parse(source).body
        for node in typing.cast(ast.ClassDef, body).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                said[node.target.id] = "; ".join(comments[line] for line in lines if line in comments)
    return {key: field.description or said.get(key, "") for key, field in section.model_fields.items()}


def shape(kind: Any) -> str:
    """A type in words.

    >>> shape(int | None), shape(typing.Literal["a", "b"]), shape(tuple[str, ...])
    ('whole number', '"a", "b"', 'list of texts')
    """
    if get_origin(kind) is typing.Annotated:
        return shape(get_args(kind)[0])
    if get_origin(kind) is typing.Literal:
        return ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in get_args(kind))
    if get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(shape(part) for part in get_args(kind) if part is not type(None)))
    if get_origin(kind) is tuple:
        return f"list of {shape(get_args(kind)[0])}s"
    if get_origin(kind) in (list, dict) or kind in (list, dict):
        return "list" if (get_origin(kind) or kind) is list else "table"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(kind, "table")


def default(field: Any) -> str:
    """What holds where nothing is said."""
    value = field.default
    if value is None or value is PydanticUndefined:
        return "–"
    return f'`"{value}"`' if isinstance(value, str) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def page() -> str:
    """The whole page."""
    parts = [HEAD, "`name`, above all tables, names the experiment.\n"]
    for name, section in sections().items():
        parts.append(f"## `[{name}]`\n\n| key | takes | default | meaning |\n|---|---|---|---|")
        known = meanings(section)
        for key, field in section.model_fields.items():
            parts.append(
                f"| `{key}` | {shape(field.annotation)} | {default(field)} | {known[key].replace('|', chr(92) + '|')} |"
            )
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
