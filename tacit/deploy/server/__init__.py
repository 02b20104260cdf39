"""Tacit on Flower: the one package that imports flwr. Flower brings the wire, Tacit the privacy.

Everything that decides about privacy is in `tacit.deploy.site` and in the algorithms; here it is only carried.

    at the server   server, muster (who takes part), door (who is let in), gather (asking), trainer, frame (what arrives)
    at a site       executor, node (the line to the server), client (a message in, an answer out)
    of others       mod (a plain Flower client in a Tacit run), plain (Tacit's client under a plain Flower server)
    in one process  local (for tests and first trials), simulation (Flower's engine, on Ray)

Importing it raises BadInput where flwr is not installed, or another version than was tried."""

from importlib.metadata import PackageNotFoundError, version

from tacit.errors import BadInput

OLDEST, NEWEST = "1.41", "1.43"  # flwr>=1.41,<1.43: the HTTP API on one port, as it was tried
INSTALL = 'pip install "tacit[flower]"'


def require_flwr() -> str:
    """The version of flwr that is installed. Raises: BadInput, with the command to type, for none or one that was not tried."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise BadInput(f"Flower is not installed: {INSTALL}") from None
    if not _numbers(OLDEST) <= _numbers(found) < _numbers(NEWEST):
        raise BadInput(f"Tacit works with flwr >={OLDEST},<{NEWEST}, and {found} is installed: {INSTALL}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


require_flwr()
