"""One table of an experiment file: frozen, and what cannot stand together is refused in one sentence."""

from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator

from tacit import wording
from tacit.errors import BadInput
from tacit.plugin import PYTHON

DEEPEST = 4  # of lists and tables within an option
PASSED = "passed"  # the key under which a file says what was passed from Python: a name and a digest, never the thing


class Section(BaseModel):
    """A table all of whose keys are known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            known = isinstance(value, bool) and key in cls.model_fields
            if known and not _takes_truth(cls.model_fields[key].annotation):
                raise BadInput(wording.wrong(f"{cls.table()}.{key}", cls.model_fields[key].annotation, value))
        return values

    @model_validator(mode="after")
    def _refuse_impossible(self) -> "Section":
        self.possible()
        return self

    @classmethod
    def table(cls) -> str:
        """The table's name in the file."""
        return cls.__name__.removesuffix("Section").lower()

    def possible(self) -> None:
        """Raises BadInput for values that cannot stand together."""

    def refuse_both(self, section: str, one: str, other: str) -> None:
        """Refuses two keys of which only one can rule."""
        if getattr(self, one) is not None and getattr(self, other) is not None:
            raise BadInput(f"{section}.{one} and {section}.{other} say the same thing twice: set one of them.")


def _takes_truth(kind: Any) -> bool:
    """Whether a key of this type may be true or false.

    >>> [_takes_truth(kind) for kind in (bool, bool | None, float | None)]
    [True, True, False]
    """
    if get_origin(kind) in (Union, UnionType):
        return any(map(_takes_truth, get_args(kind)))
    return kind is bool or (get_origin(kind) is Annotated and get_args(kind)[0] is bool)


class OpenSection(Section):
    """A table that names a part (a rule, a model, a data source): keys that it does not know are that part's options.

    They are kept as they were said, and checked when the part is made (tacit/plugin.py): reading a file imports nothing.
    Raises BadInput for a value that TOML cannot say again.

    A part that was passed from Python travels with its table (`carrying`), under the name "python", and is in none of its texts.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    names_part: ClassVar[str] = "name"  # the key that names the part
    _part: Any = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _plain_options(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        rest = {str(key): value for key, value in values.items() if key not in own and value is not None}
        for key in rest:
            if not key.isidentifier():
                raise BadInput(
                    f"Expected the keys of [{cls.table()}] to be names such as learning_rate, got {key[:60]!r}."
                )
        return own | {key: _plain(rest[key], f"{cls.table()}.{key}") for key in sorted(rest)}

    def options(self) -> dict[str, Any]:
        """What was said beside the table's own keys."""
        passed = getattr(self, self.names_part) == PYTHON
        return {key: value for key, value in (self.model_extra or {}).items() if key != PASSED or not passed}

    @property
    def part(self) -> Any:
        """The part itself, where it was passed from Python."""
        return self._part

    def carrying(self, part: Any, *, passed: str) -> Self:
        """The table with this part in the place of the one that it names; `passed` is what its text says of it."""
        made = self.model_copy(update={self.names_part: PYTHON})
        made = type(self).model_validate(made.model_dump(exclude_none=True) | {PASSED: passed})
        made._part = part
        return made


def _plain(value: Any, key_path: str, *, depth: int = 0) -> Any:
    if isinstance(value, str | int | float):
        return value
    if depth < DEEPEST and isinstance(value, list | tuple):
        return [_plain(item, key_path, depth=depth + 1) for item in value]
    if depth < DEEPEST and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, key_path, depth=depth + 1) for key, item in value.items()}
    raise BadInput(f"Expected {key_path} to be a text, a number, or a list or table of them.")
