"""Commands whose help says what their arguments are, whatever click is installed.

click 8.5 gave its own arguments a help text, and so takes away the one that typer before 0.21 has set; Flower keeps typer there.
"""

import inspect
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo


class Command(TyperCommand):
    """A command that says of its arguments what its function does."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        told = _told(self.callback) if self.callback else {}
        for one in self.params:
            if isinstance(one, TyperArgument) and one.help is None:
                one.help = told.get(str(one.name))


class Program(typer.Typer):
    """A group of such commands."""

    def command(self, name: str | None = None, *, epilog: str | None = None, **more: Any) -> Any:
        """As typer's, with this kind of command."""
        return super().command(name, cls=Command, epilog=epilog, **more)


def _told(function: Any) -> dict[str, str | None]:
    """What a function says of its arguments, by name."""
    found = {}
    for name, hint in get_type_hints(inspect.unwrap(function), include_extras=True).items():
        for said in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(said, ArgumentInfo):
                found[name] = said.help
    return found
