"""What is wrong with a site's own file, in one sentence that follows the file's name."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from tacit import wording as words

MOST_CALLED = 100  # signs of an experiment's name in the files that are made of it


def wording(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """The first problem of a file that was held against `model`; for the site's own people: it repeats the value that is wrong."""
    return _after_a_colon(words.sentence(error, model, values))


def unknown(key: str, known: Iterable[str]) -> str:
    """That a file has a key that nothing reads, with the nearest one that something does.

    >>> unknown("epsilom", ["epsilon", "delta"])
    "unknown key 'epsilom'. Did you mean 'epsilon'?"
    """
    return _after_a_colon(words.unknown(key, known))


def wrong(key: str, hint: Any, value: Any) -> str:
    """That a key's value is not of the type `hint`.

    >>> wrong("data", str, 3)
    'expected data to be a text, got 3.'
    """
    return _after_a_colon(words.wrong(key, hint, value))


def called(name: str) -> str:
    """An experiment's name for the files that are made of it: programs, units, budget files, where a sign of it may be code.

    Guarantee: one line of letters, digits, spaces and `-_.`, of at most `MOST_CALLED` signs: nothing closes a text or a comment.

    >>> called("100% sure'; import os")
    '100_ sure__ import os'
    """
    return "".join(sign if sign.isalnum() or sign in " -_." else "_" for sign in name[:MOST_CALLED])


def _after_a_colon(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
