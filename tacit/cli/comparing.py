"""The words of `tacit compare`; what they come to is in tacit/cli/comparing.py, which is loaded when they are said."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tacit import plugin
from tacit.cli.running import AsJson, Settings
from tacit.cli.trying import wanted
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.lab.attacks._columns import IN_RUNS, chosen, with_columns
from tacit.lab.compare import table
from tacit.lab.compare.grid import ASKED, BASE, asked, parse_vary, refuse_taken, text
from tacit.lab.compare.pool import Display
from tacit.lab.grid import compare, plain
from tacit.machine import exit_code
from tacit.report.page import write_page
from tacit.simulation import new_folder


def compare_command(
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file or a shipped experiment.", show_default=False)
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="SECTION.KEY=VALUE,VALUE", help="Values to compare; all combinations are run."),
    ] = None,
    settings: Settings = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds each combination has; 3 if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for the results; a new one under runs/ otherwise.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison in --out; finished runs are kept.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Set an earlier comparison in --out aside and start anew.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="How many runs go side by side; all cores if left out.")] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME", help="Attacks to try on every run, a column each: backdoor,membership,property."
        ),
    ] = None,
    having: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="NAME.KEY=VALUE", help="An option of an attack (property.classes=[3]); may be repeated."
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="One ledger for all runs, which others may share; the noise must be said."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of settings with several seeds, and put the results side by side, with what they cost together.

    The exit code is 1 if a run failed; the others are still in the table.
    """

    plugin.search_here()
    words: Any = {"vary": vary or [], "settings": settings or [], "seeds": seeds, "out": out, "jobs": jobs}
    words |= {"attack": attack, "having": having or [], "ledger": ledger}
    code = command(experiment, resume=resume, force=force, as_json=as_json, **words)
    raise typer.Exit(code)


# `tacit compare` behind the command line: from words to a comparison, and what is said at its end.

SEEDS = 3  # the fewest that give an interval one can use


def command(
    experiment: str | None,
    *,
    vary: list[str],
    settings: list[str],
    seeds: int | None,
    out: Path | None,
    resume: bool,
    force: bool,
    jobs: int | None,
    as_json: bool,
    attack: str | None = None,
    having: Sequence[str] = (),
    ledger: Path | None = None,
) -> int:
    """Runs a comparison and returns the exit code: 0, or 1 if a run failed, or 130 if it was stopped.

    With `resume`, what is not said is taken from the folder. `attack` names attacks, with commas between: a column for each, made
    with what `having` says of it (NAME.key=value).
    """
    said = options_of(having, attack)
    attacks = chosen(attack, said)
    if resume and out is None:
        raise BadInput("--resume needs --out DIR, the folder of the comparison to go on with.")
    if out is not None:
        refuse_taken(out, resume=resume, force=force)
    base, choices, count = _wanted(experiment, vary, settings, seeds, known=out if resume else None)
    if IN_RUNS in attacks:
        base.setdefault("attack", {"kind": "replacement"})
    if not choices and not resume and seeds is None:
        raise BadInput(
            "Nothing is varied, so there is nothing to compare: add --vary aggregate.rule=mean,weighted (or another key and its "
            "values), give --seeds N to compare seeds alone, or use `tacit run`."
        )
    folder = out or new_folder(f"{base.get('name', 'digits')}-compare")
    console = Console(stderr=as_json, quiet=as_json)
    try:
        with Display(console) as display:
            options: dict[str, Any] = {"resume": resume, "force": force, "jobs": jobs, "display": display}
            options["ledger"] = ledger
            rows = compare(base, choices, seeds=count, out=folder, **options)
        if attacks and attacks != [IN_RUNS]:
            tell = partial(print, file=sys.stderr)
            rows = with_columns(rows, attacks, out=folder, jobs=jobs, tell=tell, options=said)
            table.write(folder, rows)
            write_page([folder], folder / "report.html")
    except KeyboardInterrupt as error:
        begun = (folder / ASKED).exists()
        same = "".join(
            f" --{flag} {word}"
            for flag, words in (("attack", attack and [attack]), ("with", having))
            for word in words or ()
        )
        way = (
            f"Nothing is lost: go on with `tacit compare --resume --out {folder}{same}`."
            if begun
            else "Nothing had begun."
        )
        print(f"Stopped. {way}", file=sys.stderr)
        return exit_code(error)
    if as_json:
        print(json.dumps(table.record(rows), indent=2))
    else:
        table.show(rows, console)
        console.print(
            Text(
                f"Files: {folder} (report.html; table.md, .csv and .tex; differences.csv; compare.csv, rounds.csv;"
                " figures as .png, .svg and .pdf; runs/)"
            )
        )
    return int(any(run.failure for row in rows for run in row.runs))


def options_of(words: Sequence[str], attack: str | None) -> dict[str, dict[str, Any]]:
    """The options of every attack, from NAME.key=value, or key=value where one attack is named. Raises BadInput.

    >>> options_of(["classes=[3]", "property.looks=2"], "property")
    {'property': {'classes': [3], 'looks': 2}}
    """
    found: dict[str, dict[str, Any]] = {}
    only = "" if "," in (attack or "") else (attack or "").strip()
    for word in words:
        key, separator, text = word.partition("=")
        name, _, option = key.rpartition(".")
        if not (name or only):
            raise BadInput(f"Expected an option of one of the attacks as --with NAME.key=value, got {word!r}.")
        found.setdefault(name or only, {}).update(wanted([f"{option}{separator}{text}"]))
    return found


def _wanted(
    experiment: str | None, vary: list[str], settings: list[str], seeds: int | None, *, known: Path | None
) -> tuple[dict[str, Any], dict[str, list[Any]], int]:
    """The base experiment, what varies, and the number of seeds; from the known folder where they are not said."""
    choices, count = parse_vary(vary), SEEDS if seeds is None else seeds
    source: str | Path = experiment or "digits"
    if known is not None:
        before, seeds_before = asked(known)
        choices, count = choices or before, seeds_before if seeds is None else seeds
        source = experiment or known / BASE
    try:
        return plain(Experiment.load(source, tuple(settings))), choices, count
    except BadInput:  # a file may leave out what is varied: read it as the first cell has it
        first = [f"{key}={text(values[0])}" for key, values in choices.items()]
        return plain(Experiment.load(source, (*settings, *first))), choices, count
