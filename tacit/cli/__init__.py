"""The command line, a file for each group of commands: parse, call, print."""

from tacit.cli.app import main

__all__ = ["main"]
