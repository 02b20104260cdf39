"""Tacit on Flower: the one package that imports flwr. Flower brings the wire, Tacit the privacy.

Everything that decides about privacy is in `tacit.deploy.site` and in the algorithms; here it is only carried. Importing it raises
BadInput where flwr is not installed, or another version than was tried."""

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
    oldest, newest, here = (tuple(map(int, each.split(".")[:2])) for each in (OLDEST, NEWEST, found))
    if not oldest <= here < newest:
        raise BadInput(f"Tacit works with flwr >={OLDEST},<{NEWEST}, and {found} is installed: {INSTALL}")
    return found


require_flwr()
