"""The command line: parse, call, print. Every refusal is one sentence on standard error and exit code 2."""

import re
import sys
from typing import Annotated

import typer
from click.exceptions import NoArgsIsHelpError, UsageError

import tacit
from tacit.cli import deploy, planning, report, runs
from tacit.cli.program import EXPERIMENT, Program, Root
from tacit.errors import TacitError, exit_code, stop_on_term
from tacit.experiment.file import homes

app = Program(
    name="tacit",
    cls=Root,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("run", json=True, epilog=EXPERIMENT)(runs.run_command)
app.command("compare", json=True, epilog=EXPERIMENT)(runs.compare_command)
app.command("tune", json=True, epilog=EXPERIMENT)(runs.tune_command)
app.command("plan", json=True)(planning.plan_command)
app.command("data", json=True)(planning.data_command)
app.command("stats", json=True, epilog=EXPERIMENT)(planning.stats_command)
app.command("report")(report.report_command)
app.command("predict")(report.predict_command)
app.command("audit", json=True, epilog=planning.AUDIT)(planning.audit_command)
app.command("attack", json=True, epilog=EXPERIMENT)(planning.attack_command)
app.command("keys", json=True)(deploy.keys_command)
app.command("ledger")(report.ledger_command)
app.add_typer(deploy.app, name="deploy")


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results as JSON; may stand behind the command.")] = False,
) -> None:
    """Federated learning with a privacy promise that holds."""
    del debug, json  # Root and main have read them, wherever they stand
    if version:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit


def _usage(error: UsageError) -> str:
    """What was wrong with the command; where an option is really a setting, how settings are given. A command without settings
    says instead what it takes."""
    said = re.sub(r"(\s*Did you mean '[^']*'\?)\1+", r"\1", error.format_message().rstrip("."))
    name = str(getattr(error, "option_name", "") or "").lstrip("-").replace("-", "_")
    context = error.ctx
    if not name or context is None:
        return said
    if any("--set" in each.opts for each in context.command.params):
        keys = list(homes(name))
        return f"There is no option --{name}: write `--set {keys[0]}=VALUE`" if keys else said
    if said.endswith("?"):  # it has the nearest option already
        return said
    path = context.command_path.removeprefix("python -m ")
    words = " ".join((path, *context.command.collect_usage_pieces(context)))
    return f"There is no option --{name.replace('_', '-')}: the command is `{words}`"


def main() -> None:
    """The console script."""
    debug = "--debug" in sys.argv
    try:
        stop_on_term()
        sys.exit(app(standalone_mode=False) or 0)
    except NoArgsIsHelpError:  # the help has been printed
        sys.exit(2)
    except UsageError as error:
        said = _usage(error)
        typer.echo(f"{said}{'' if said.endswith('?') else '.'} Try `tacit --help`.", err=True)
        sys.exit(2)
    except TacitError as error:
        if debug:
            raise
        typer.echo(str(error), err=True)
        sys.exit(2)
    except KeyboardInterrupt as error:
        typer.echo("Stopped.", err=True)
        sys.exit(exit_code(error))
