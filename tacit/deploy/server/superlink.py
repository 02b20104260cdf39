"""Flower's SuperLink as Tacit starts it: `python -m tacit.deploy.server.superlink OPTIONS...`, the options of flower-superlink.

Four things differ. Its files are for their owner only. A writer waits for SQLite's lock longer than the five seconds in which
forty sites may all want it. On loopback it takes connections of this user (the gateway's among them) and of root only. And a site
can announce nothing but one answer of its own, of few parts. As `... register CONNECTION NAME=KEY.pub...` it tells a running
SuperLink which node keys may join."""

import os
import socket
import struct
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import HTTPException
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.utils import init_http_client_from_connection
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.control_pb2 import RegisterNodeRequest
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

    Flower shows its addresses in command lines, so that no token in one would stay secret: under Linux the kernel is asked whose
    the other end is, before a byte is read. Elsewhere nobody is refused.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        line, client = super().accept()
        if TABLE.exists() and _owner(client, self.getsockname()) not in (os.geteuid(), 0):
            line.close()
            raise ConnectionAbortedError
        return line, client


def _owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user whose process is the client's end of a connection over IPv4's loopback; None if the kernel's table has none."""
    ends = [f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}" for host, port in (client, server)]
    for line in TABLE.read_text("ascii").splitlines()[1:]:
        words = line.split()
        if words[1:4] == [*ends, ESTABLISHED]:
            return int(words[7])
    return None


def _refuse_false_answers() -> None:
    """Has the Fleet API look at an announced answer before it is stored.

    Flower would store an answer in another site's name, and a site's message to another site as the server's request.
    """
    words: Any = vars(fleet_handlers)
    store = words["push_messages"]

    def push_messages(request: PushMessagesRequest, state: LinkState) -> PushMessagesResponse:
        if not _is_own_answer(request):
            raise HTTPException(400, "A site announces one answer of its own at a time, of few parts.")
        return store(request=request, state=state)

    words["push_messages"] = push_messages


def _is_own_answer(request: PushMessagesRequest) -> bool:
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
    """Serves until SIGTERM, by the same steps as `flower-superlink`."""
    os.umask(0o077)
    pragmas: Any = vars(sql_mixin)
    pragmas["SQLITE_PRAGMAS"] = tuple((dict(pragmas["SQLITE_PRAGMAS"]) | {"busy_timeout": LOCK_MILLISECONDS}).items())
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


def register(connection: str, keys: dict[str, Path]) -> None:
    """Registers every key under its site's name, to which the server holds its node; a known key keeps the name it has."""
    with init_http_client_from_connection(read_superlink_connection(connection)) as client:
        for name, key in keys.items():
            try:
                client.RegisterNode(request=RegisterNodeRequest(public_key=try_load_public_key(key), name=name))
            except httpx.HTTPStatusError as error:
                if "already" not in error.response.text.lower():
                    raise


if __name__ == "__main__":
    if sys.argv[1:2] == ["register"]:
        register(sys.argv[2], {name: Path(key) for name, _, key in (word.partition("=") for word in sys.argv[3:])})
    else:
        main()
