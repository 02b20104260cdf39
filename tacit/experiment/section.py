"""One table of an experiment file: frozen, and what cannot stand together is refused in one sentence."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from tacit.errors import BadInput


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, values: Any) -> Any:
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool):
                raise BadInput(f"Expected {key} to be a text or a number, got {str(value).lower()}.")
        return values

    @model_validator(mode="after")
    def _refuse_impossible(self) -> "Section":
        self.possible()
        return self

    def possible(self) -> None:
        """Raises BadInput for values that cannot stand together."""

    def refuse_both(self, section: str, one: str, other: str) -> None:
        """Refuses two keys of which only one can rule."""
        if getattr(self, one) is not None and getattr(self, other) is not None:
            raise BadInput(f"{section}.{one} and {section}.{other} say the same thing twice: set one of them.")
