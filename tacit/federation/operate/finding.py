"""What `tacit deploy check` says, line by line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the check: something that is in order, something to know, or something that is wrong and what to do about it."""

    text: str
    wrong: bool = False
    note: bool = False  # nothing is wrong, and yet it is not what somebody who goes on expects
