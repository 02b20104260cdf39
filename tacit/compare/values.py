"""The values of a grid as text: read from the command line, written into labels and file names."""

from collections.abc import Iterable, Mapping
from typing import Any

from tacit.errors import BadInput
from tacit.experiment.toml import dumps, parse_value

OPEN, CLOSE, QUOTES = "[{", "]}", "\"'"
LONGEST_VALUE = 24  # characters of a value in a label


def parse_vary(lines: Iterable[str]) -> dict[str, list[Any]]:
    """`section.key=value,value` lines as keys and their values.

    >>> parse_vary(["aggregate.rule=mean,pfa", "privacy.epsilon=[1, 2],3"])
    {'aggregate.rule': ['mean', 'pfa'], 'privacy.epsilon': [[1, 2], 3]}
    """
    vary: dict[str, list[Any]] = {}
    for line in lines:
        key, separator, values = line.partition("=")
        key = key.strip()
        if not separator or not key:
            raise BadInput(f"Expected --vary section.key=value,value, got {line!r}.")
        if key in vary:
            raise BadInput(f"{key} is varied twice: give all its values in one --vary.")
        vary[key] = [parse_value(value) for value in split(values)]
    return vary


def split(values: str) -> list[str]:
    """Cuts at the commas that stand outside brackets, braces and quotes.

    >>> split('a, [1, 2], {x = 1, y = 2}, "b, c"')
    ['a', '[1, 2]', '{x = 1, y = 2}', '"b, c"']
    """
    parts, depth, quote = [""], 0, ""
    for character in values:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES:
            quote = character
        depth += 0 if quote else (character in OPEN) - (character in CLOSE)
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if depth or quote:
        raise BadInput(f"Expected every bracket and quote to be closed in {values!r}.")
    if not all(part.strip() for part in parts):
        raise BadInput(f"Expected a value before and after every comma of --vary KEY=VALUE,VALUE, got {values!r}.")
    return [part.strip() for part in parts]


def text(value: Any) -> str:
    """A value as a person would type it.

    >>> text("pfa"), text(3), text([1.0, 2]), text({"file": "a.csv"})
    ('pfa', '3', '[1.0, 2]', '{file = "a.csv"}')
    """
    return value if isinstance(value, str) else dumps({"x": [value]}).strip()[len("x = [") : -len("]")]


def label(varied: Mapping[str, Any], *, every_key: bool = False) -> str:
    """A cell in words: texts alone, numbers after their key.

    >>> label({"aggregate.rule": "pfa", "privacy.epsilon": 3, "aggregate.rank": None})
    'pfa, epsilon 3'
    """
    words = []
    for key, value in varied.items():
        name = key if every_key else key.rpartition(".")[2].replace("_", " ")
        if value is not None:
            words.append(
                short(text(value)) if isinstance(value, str) and not every_key else f"{name} {short(text(value))}"
            )
    return ", ".join(words)


def short(words: str) -> str:
    """A value that fits into a label, with both its ends: they tell values apart."""
    half = (LONGEST_VALUE - 1) // 2
    return words if len(words) <= LONGEST_VALUE else f"{words[:half]}…{words[-half:]}"


def headings(keys: Iterable[str]) -> list[str]:
    """The varied keys as column names: without their section, unless two would be the same.

    >>> headings(["data.name", "model.name", "privacy.epsilon"])
    ['data.name', 'model.name', 'epsilon']
    """
    all_keys = list(keys)
    ends = [key.rpartition(".")[2].replace("_", " ") for key in all_keys]
    return [end if ends.count(end) == 1 else key for key, end in zip(all_keys, ends, strict=True)]
