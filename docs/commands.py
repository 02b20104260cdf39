"""Writes docs/commands.md: every command with its arguments and options, from the program itself. `python docs/commands.py`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tacit.cli.app import app

PAGE = Path(__file__).with_name("commands.md")
HEAD = """# Every command

Written by `python docs/commands.py` from the program; do not edit. `tacit COMMAND --help` says the same in a terminal.
`tacit --json COMMAND` and `tacit COMMAND --json` print JSON instead of tables, where a command has results to print.
Exit codes: 0 done; 2 refused, with one sentence that says what to do; 3 a claim that an audit rejects.
"""


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    if hasattr(command, "commands"):
        for sub in sorted(command.commands):
            yield from commands(command.commands[sub], f"{name} {sub}")
    elif not command.hidden:
        yield name, command


def shown(parameter: Any) -> str:
    """How an argument or an option is typed."""
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" {(parameter.metavar or parameter.type.name).upper()}"
    return names + value


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, command in commands(typer.main.get_command(app), "tacit"):
        parts += [f"## `{name}`", "", inspect.cleandoc(command.help or "").split("\f")[0].strip(), ""]
        known = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
        if known:
            for one in known:
                text = " ".join((getattr(one, "help", None) or "").split())
                parts.append(f"- {shown(one)}: {text}")
            parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
