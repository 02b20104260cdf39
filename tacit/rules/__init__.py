"""Aggregation rules: how the server combines updates. One file per rule; its name is the name in the TOML.

A rule is an object with `sees` ("sums" or "rows"), `init()` and `apply(state, messages)`. To add one, write one file.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from tacit import check
from tacit.errors import BadInput
from tacit.types import Message


@dataclass(frozen=True)
class Applied:
    """What a rule gives back: the combined update, what it remembers, and numbers for the reader."""

    update: torch.Tensor = field(repr=False)
    state: dict[str, torch.Tensor] = field(repr=False)
    info: dict[str, Any]


class Rule(Protocol):
    """How the server combines updates."""

    @property
    def sees(self) -> str:
        """ "sums" if weighted sums are all it needs, "rows" if it needs each update."""
        ...

    def init(self) -> dict[str, torch.Tensor]:
        """What it remembers before the first round."""
        ...

    def apply(self, state: dict[str, torch.Tensor], messages: Iterable[Message]) -> Applied:
        """Combines the updates of one round."""
        ...


def names() -> list[str]:
    """The rules that ship with Tacit, by file."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[a-z]*.py"))


def load(name: str, **options: Any) -> Rule:
    """The rule of that name, or of "package.module:factory"."""
    if ":" not in name:
        check.one_of(names(), **{"aggregate.rule": name})
        module, factory = f"tacit.rules.{name.replace('-', '_')}", name.replace("-", "_")
    else:
        module, factory = name.split(":", 1)
    try:
        return getattr(importlib.import_module(module), factory)(**options)
    except (ImportError, AttributeError, TypeError) as error:
        raise BadInput(f"The rule {name!r} cannot be made ({error}).") from error
