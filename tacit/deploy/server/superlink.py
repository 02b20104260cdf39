"""Flower's SuperLink as Tacit starts it: `python -m tacit.deploy.server.superlink OPTIONS...`, the options of flower-superlink.

Four things differ. Its files are for their owner only. A writer waits for SQLite's lock longer than the five seconds in which
forty sites may all want it. On loopback it takes connections of this user (the gateway's among them) and of root only: Linux
tells whose the other end is (/proc/net/tcp). And a site can announce nothing but one answer of its own, of few parts."""

import os
import socket
import struct
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import HTTPException
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore import sql_mixin
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from flwr.superlink.servicer.fleet import fleet_handlers

LOCK_MILLISECONDS = "60000"
ESTABLISHED = "01"  # include/net/tcp_states.h; sockets in later states no longer say whose they were
TABLE = Path("/proc/net/tcp")
MOST_PARTS = 256  # of an answer: an array in pieces of 5 MiB has 1.2 GiB; the store holds its lock for each


class OwnSocket(socket.socket):
    """A listening socket that takes connections from processes of this user and of root alone, and hangs up on all others.

    Guarantee: under Linux it asks the kernel whose the other end is, before a byte is read, so nothing it says of itself counts.

    Assumes: it listens on IPv4's loopback. Elsewhere than under Linux nobody is refused.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises: ConnectionAbortedError for somebody else's, which asyncio passes over."""
        line, client = super().accept()
        if TABLE.exists() and owner(client, self.getsockname()) not in (os.geteuid(), 0):
            line.close()
            raise ConnectionAbortedError
        return line, client


def owner(client: tuple[str, int], server: tuple[str, int], *, table: Path = TABLE) -> int | None:
    """The number of the user whose process is the client's end of a connection within this machine; None if the table has none.

    `table` is in the form of /proc/net/tcp: IPv4 only, with addresses as the machine's own 32-bit numbers.
    """
    wanted = [_hex(client), _hex(server), ESTABLISHED]
    for line in table.read_text("ascii").splitlines()[1:]:
        words = line.split()
        if words[1:4] == wanted:
            return int(words[7])
    return None


def _hex(end: tuple[str, int]) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{number:08X}:{end[1]:04X}"


def _wait_longer() -> None:
    words: Any = vars(sql_mixin)
    words["SQLITE_PRAGMAS"] = tuple((dict(words["SQLITE_PRAGMAS"]) | {"busy_timeout": LOCK_MILLISECONDS}).items())


def _refuse_false_answers() -> None:
    words: Any = vars(fleet_handlers)
    store = words["push_messages"]

    def push_messages(request: PushMessagesRequest, state: LinkState) -> PushMessagesResponse:
        if not is_own_answer(request):
            raise HTTPException(400, "A site announces one answer of its own at a time, of few parts.")
        return store(request=request, state=state)

    words["push_messages"] = push_messages


def is_own_answer(request: PushMessagesRequest) -> bool:
    """Whether a request announces one answer, from its node to the server, whose parts are at most `MOST_PARTS`."""
    if not len(request.messages_list) == len(request.message_object_trees) == 1:
        return False
    (metadata,), (tree,) = [message.metadata for message in request.messages_list], request.message_object_trees
    return (
        (metadata.src_node_id, metadata.dst_node_id) == (request.node.node_id, SUPERLINK_NODE_ID)
        and metadata.reply_to_message_id != ""
        and metadata.message_id == tree.object_id
        and len(list(islice(iterate_object_tree(tree), MOST_PARTS + 1))) <= MOST_PARTS
    )


def main() -> None:
    """Serves until SIGTERM, by the same steps as `flower-superlink`; what it writes is for its owner only."""
    os.umask(0o077)
    _wait_longer()
    _refuse_false_answers()
    config = _parse_superlink_lifespan_config()
    listening = OwnSocket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((config.host, config.port))
    served: Any = create_app(config, SuperLinkLifespan)
    options = uvicorn.Config(  # another loop than asyncio's own would not call OwnSocket.accept
        served, loop="asyncio", access_log=False, workers=1, log_level="warning",
        ssl_keyfile=config.ssl_keyfile, ssl_certfile=config.ssl_certfile,
    )  # fmt: skip
    server = uvicorn.Server(options)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    sys.exit(not server.started)


if __name__ == "__main__":
    main()


# A ServerApp that does not outlive its SuperLink: Flower's own exit can wait for a server that is gone.

LOOK_SECONDS = 1.0
GRACE_SECONDS = 10.0  # for Flower's own way out
