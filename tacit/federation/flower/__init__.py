"""Tacit on Flower: the one package that imports flwr. Flower brings the wire, Tacit the privacy.

Everything that decides about privacy is in `tacit.federation.site` and in the algorithms; here it is only carried.
"""

from importlib.metadata import PackageNotFoundError, version

from tacit.errors import BadInput

OLDEST, NEWEST = "1.41", "1.43"  # flwr>=1.41,<1.43: the HTTP API on one port, as it was tried
INSTALL = 'pip install "tacit[flower]"'


def require_flwr() -> str:
    """The version of flwr that is installed. Raises BadInput, with the command to type, for none or another one."""
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
