"""What a check says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the check."""

    text: str
    wrong: bool = False
