"""What all commands share: options, one way to print, one way to stop, and `--json` for the whole program.

Nothing here or at the top of a command's module loads torch: a command loads what works when its words have been checked."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from click import get_current_context
from click.exceptions import NoSuchOption
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from tacit import plugin
from tacit.errors import BadInput, exit_code
from tacit.experiment import Experiment
from tacit.experiment.file import parse_value, shipped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DIGITS = "digits"  # the experiment where none is named
EXPERIMENT = f"EXPERIMENT is a TOML file, or one that ships with Tacit: {', '.join(shipped())}; {DIGITS} if left out."
JSON = "With --json it prints JSON."
MOST_WIDE = 1000  # columns of a table

Source = Annotated[str | None, typer.Argument(help="A TOML file or a shipped experiment.", show_default=False)]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated.")
]
Vary = Annotated[
    list[str] | None,
    typer.Option("--vary", metavar="SECTION.KEY=VALUE,VALUE", help="Values of a setting; all combinations are run."),
]
With = Annotated[
    list[str] | None, typer.Option("--with", metavar="KEY=VALUE", help="An option of the attack; may be repeated.")
]
Out = Annotated[Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in --out; what is finished is kept.")]
Force = Annotated[bool, typer.Option("--force", help="Set what is in --out aside (nothing is deleted) and start anew.")]
Jobs = Annotated[int | None, typer.Option(help="How many runs go side by side; all cores if left out.")]


class Command(TyperCommand):
    """A command whose help says what its arguments are, whatever click is installed, and that may print JSON."""

    def __init__(self, *args: Any, json: bool = False, **more: Any):
        epilog = " ".join(filter(None, (more.pop("epilog", None), JSON if json else "")))
        super().__init__(*args, epilog=epilog or None, **more)
        self.json, known = json, _helps(self.callback)
        for one in self.params:
            if isinstance(one, TyperArgument) and one.help is None:
                one.help = known.get(str(one.name))

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; `--json` is refused by those that print no results."""
        if as_json() and not self.json:
            raise NoSuchOption("--json", ctx=ctx)
        return super().invoke(ctx)


class Root(TyperGroup):
    """The whole program: `--json` and `--debug` may stand anywhere behind `tacit`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes the program's own flags out of the words, wherever they stand."""
        for flag in ("--json", "--debug"):
            ctx.meta[f"tacit{flag}"] = flag in args
        return super().parse_args(ctx, [word for word in args if word not in ("--json", "--debug")])


class Shows(TyperGroup):
    """A group whose command `show` may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts `show` before words that name no command."""
        named = args[:1] == ["--help"] or args[:1] in [[name] for name in self.commands]
        return super().parse_args(ctx, args if named else ["show", *args])


class Program(typer.Typer):
    """A group of such commands; `json=True` for those that can print JSON."""

    def command(self, name: str | None = None, *, json: bool = False, epilog: str | None = None, **more: Any) -> Any:
        """As typer's, with this kind of command."""
        kind: Any = partial(Command, json=json)
        return super().command(name, cls=kind, epilog=epilog, **more)


def _helps(function: Any) -> dict[str, str | None]:
    found = {}
    for name, hint in get_type_hints(inspect.unwrap(function), include_extras=True).items():
        for said in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if isinstance(said, ArgumentInfo):
                found[name] = said.help
    return found


def as_json() -> bool:
    """Whether JSON was asked for."""
    context = get_current_context(silent=True)
    return context is not None and context.find_root().meta.get("tacit--json", False)


def console() -> "Console":
    """The terminal; where JSON was asked for, one that says nothing."""
    from rich.console import Console

    return Console(stderr=as_json(), quiet=as_json())


def show(table: "Table") -> None:
    """Prints a table with every cell whole: where it is wider than the terminal, its lines wrap."""
    from rich.measure import Measurement

    screen = console()
    found = Measurement.get(screen, screen.options.update(width=MOST_WIDE), table)
    if found.minimum > screen.width:
        screen.width = found.maximum
    screen.print(table)


def print_json(value: Any) -> None:
    """Prints a result for programs."""
    typer.echo(json.dumps(value, indent=2))


def load(source: str | Path | None, settings: Sequence[str] | None) -> Experiment:
    """The experiment that a command is about. Raises BadInput before anything that trains is loaded."""
    plugin.search_here()
    return Experiment.load(source or DIGITS, tuple(settings or ()))


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """The options of a part, from KEY=VALUE. Raises BadInput.

    >>> options_of(["models=8", "classes=[0, 1]"])
    {'models': 8, 'classes': [0, 1]}
    """
    options = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key.isidentifier() or not text:
            raise BadInput(f"Expected an option as --with key=value, got {word!r}.")
        options[key] = parse_value(text)
    return options


def check_resume(out: Path | None, *, resume: bool, force: bool, what: str = "run") -> None:
    """Refuses `--resume` without a folder, or together with `--force`. Raises BadInput."""
    if resume and force:
        raise BadInput(f"--resume goes on with a {what} and --force starts a new one: use one of them.")
    if resume and out is None:
        raise BadInput(f"--resume needs --out DIR, the folder of the {what} to go on with.")


@contextmanager
def stoppable(begun: Callable[[], bool], go_on: Callable[[], str]) -> Iterator[None]:
    """Says in one sentence how to go on where a person, or SIGTERM, stops what happens within."""
    try:
        yield
    except KeyboardInterrupt as error:
        way = f"Nothing is lost: {go_on()}." if begun() else "Nothing had begun yet."
        typer.echo(f"Stopped. {way}", err=True)
        raise typer.Exit(exit_code(error)) from None


def refuse_given(options: Mapping[str, Any], why: str) -> None:
    """Refuses options that say nothing here; `why` has `{}` for their names. Raises BadInput."""
    given = [name for name, value in options.items() if value not in (None, False, [])]
    if given:
        raise BadInput(why.format(", ".join(given)))
