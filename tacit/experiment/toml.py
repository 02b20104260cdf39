"""Plain values as TOML text: the standard library reads TOML but does not write it."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any


def dumps(values: Mapping[str, Any]) -> str:
    """Tables one level deep, as an experiment has them.

    >>> print(dumps({"name": "a", "run": {"seed": 1, "limits": [1.0, float("inf")]}}))
    name = "a"
    <BLANKLINE>
    [run]
    seed = 1
    limits = [1.0, inf]
    <BLANKLINE>
    """
    lines = [f"{key} = {_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    for name, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


FLAT = re.compile(r"\[([^][{}'\"#\n]*)\]")  # a list without quotes, tables or other lists in it


def parse_value(text: str) -> Any:
    """A value typed on the command line: TOML where it is TOML, otherwise the text itself; so are the items of a list.

    >>> parse_value("3"), parse_value("pfa"), parse_value("[1, 2.5]")
    (3, 'pfa', [1, 2.5])
    >>> parse_value("[1, x]")
    [1, 'x']
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or a number of thousands of digits
        items = FLAT.fullmatch(text.strip())
        return [parse_value(item.strip()) for item in items[1].split(",")] if items else text


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value)


def _text(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
