"""What every table of an experiment file has in common: frozen, typed, and each refusal one sentence that names the key. A
table of several kinds is a union with a tag; a key of another kind is refused as unknown (tacit/check.py)."""

from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from tacit import check
from tacit.errors import BadInput
from tacit.plugin import PYTHON

DEEPEST = 4  # of lists and tables within an option
PASSED = "passed"  # the key under which a file says what was passed from Python: a name and a digest, never the thing

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]  # more than nothing and less than all


class Section(BaseModel):
    """A table all of whose keys are known."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    named: ClassVar[str] = ""  # the table's name in the file, where the class's own does not say it
    elsewhere: ClassVar[frozenset[str]] = frozenset()  # keys of the table's other kinds: None where a kind lacks one

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(key) if isinstance(value, bool) else None
            if field is not None and not _takes_truth(field.annotation):
                raise BadInput(check.wrong(f"{cls.table()}.{key}", check.hint_of(field), value))
        return values

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.possible()
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return None if name in type(self).elsewhere else super().__getattr__(name)

    @classmethod
    def table(cls) -> str:
        """The table's name in the file; all kinds of a table have one."""
        own = next((one.__name__ for one in cls.__mro__ if one.__name__.endswith("Section")), "")
        return cls.named or own.removesuffix("Section").lower()

    def possible(self) -> None:
        """Raises BadInput for values that cannot stand together."""

    def refuse_both(self, section: str, one: str, other: str) -> None:
        """Refuses two keys of which only one can rule."""
        if getattr(self, one) is not None and getattr(self, other) is not None:
            raise BadInput(f"{section}.{one} and {section}.{other} say the same thing twice: set one of them.")


def _takes_truth(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(map(_takes_truth, get_args(kind)))
    return kind is bool or (get_origin(kind) is Annotated and get_args(kind)[0] is bool)


class OpenSection(Section):
    """A table that names a part (a rule, a model, a data source): keys that it does not know are that part's options. They are
    checked when the part is made (tacit/plugin.py): reading a file imports nothing. A part that was passed from Python travels
    with its table (`carrying`), under the name "python", and is in none of its texts."""

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
