"""The server's open question, kept on disk before it is asked, so that a restarted server asks the very same one.

A site gives one answer to a round and keeps it: another question would be refused, and the round lost.
"""

import json

from tacit.engine.folder import Folder
from tacit.errors import BadInput


def find(folder: Folder, name: str, round: int) -> bytes | None:
    """The question that was kept under a name for this round, or None where another round's is there, or none.

    Raises: BadInput where the file is damaged: another question would be refused by every site that was asked this one.
    """
    path = folder.path / name
    if not path.exists():
        return None
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        kept = json.loads(head)["round"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(
            f"{path} is damaged, and sites that were asked what it held answer nothing else in its round: put it back as it was,"
            " or start anew with --force."
        ) from None
    return body if kept == round else None


def keep(folder: Folder, name: str, round: int, body: bytes) -> bytes:
    """Puts a round's question on disk, in the place of the round's before, and returns it.

    Guarantee: a crash leaves the old question or the new one. Assumes: it is called before anybody is asked.
    """
    folder.write(name, json.dumps({"round": round}).encode() + b"\n" + body)
    return body
