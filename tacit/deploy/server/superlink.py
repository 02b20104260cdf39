"""Flower's SuperLink as Tacit starts it: `python -m tacit.deploy.server.superlink OPTIONS...`, the options of flower-superlink.

Some things differ. Its files are for their owner only. A writer waits for SQLite's lock longer than the five seconds in which
forty sites may all want it. On loopback it takes connections of this user (the gateway's among them) and of root only. A site
can announce nothing but one answer of its own, of few parts. Who looks for messages waits here until something has come. And a
round's calls cost less.
As `... register CONNECTION NAME=KEY.pub...` it tells a running SuperLink which node keys may join."""

import asyncio
import math
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.utils import init_http_client_from_connection
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore import sql_mixin
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.corestate.sql_corestate import SqlCoreState
from flwr.supercore.dependencies.task import authenticate_task
from flwr.supercore.error.http import http_error_translator
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware as Translation
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet import router as fleet_router
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

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


# What a round's calls cost. Flower's app takes each through nine middlewares, which was most of the SuperLink's work.

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
NAMES = ("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received")
CALLS = {side + name: name.replace("-", "_") for side in (FLEET, RUNTIME) for name in NAMES}


class Direct:
    """Flower's app, whose handlers answer a round's calls at once, after the same checks of who calls and what was sent."""

    def __init__(self, app: FastAPI):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") not in CALLS or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        request = Request({**scope, "app": self._app}, receive)
        response = await http_error_translator(request, _answered)
        await response(scope, receive, send)


async def _answered(request: Request) -> Response:
    path = request.scope["path"]  # request.url is made of what the caller says is the host
    Translation._check_request_media_type(request)
    asked = Translation._parse_request(await request.body(), PROTOBUF_REQUEST_TYPES["POST", path])
    request.state.protobuf_request = asked
    handle = _of_site if path.startswith(FLEET) else _of_server
    reply = await run_in_threadpool(handle, request, asked, CALLS[path])
    return Response(reply.SerializeToString(), media_type=PROTOBUF_MEDIA_TYPE)


def _of_site(request: Request, asked: Any, call: str) -> Any:
    authenticate_node(request)
    return vars(fleet_router)[f"fleet_{call}"](asked, get_linkstate(request))


def _of_server(request: Request, asked: Any, call: str) -> Any:
    state = get_linkstate(request)
    task = authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)
    return vars(runtime_handlers)[call](asked, state, task)


CLEAN_SECONDS = (
    1.0  # Flower looks at every part of a message for tasks that died, whose heartbeats are half a minute apart
)


def _clean_seldom() -> None:
    clean, last = SqlCoreState._cleanup_expired_task_tokens, [-math.inf]

    def seldom(self: SqlCoreState) -> None:
        if time.monotonic() - last[0] >= CLEAN_SECONDS:
            last[0] = time.monotonic()
            clean(self)

    SqlCoreState._cleanup_expired_task_tokens = seldom


# How long a look for messages waits.

HOLD_SECONDS = 2.0  # that a look waits at most; a site that died is away for longer (node.SEEN_SECONDS)
CALM_SECONDS, CALMS = (
    0.03,
    10,
)  # without a push, as a message is announced before its parts are there; and so many at most
NEWS = {FLEET + "pull-messages": RUNTIME, RUNTIME + "pull-messages": FLEET}  # whose pushes a look waits for
PUSHES = {side + path: side for side in (FLEET, RUNTIME) for path in ("push-messages", "push-object")}
CALLER = (FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), TASK_TOKEN_HEADER.encode())


class Waiting:
    """The SuperLink, where a look for messages waits until the other side has pushed something since the same caller's last look.

    It waits for at most `HOLD_SECONDS`, and holds neither a thread nor the database meanwhile. A site wakes the server, and no
    other site.
    """

    def __init__(self, app: ASGIApp):
        self._app, self._pushed = app, asyncio.Event()
        self._pushes, self._last = {FLEET: 0, RUNTIME: 0}, {FLEET: 0.0, RUNTIME: 0.0}
        self._seen: dict[tuple[Any, ...], int] = {}  # pushes, by the path and the caller of a look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path in NEWS:
            caller = (path, *(value for name, value in scope["headers"] if name in CALLER))
            with suppress(TimeoutError):
                async with asyncio.timeout(HOLD_SECONDS):
                    await self._news(NEWS[path], caller)
            self._seen[caller] = self._pushes[NEWS[path]]
        await self._app(scope, receive, send)
        if path in PUSHES:
            side = PUSHES[path]
            self._pushes[side], self._last[side] = self._pushes[side] + 1, time.monotonic()
            self._pushed.set()
            self._pushed = asyncio.Event()

    async def _news(self, side: str, caller: tuple[Any, ...]) -> None:
        while self._seen.get(caller) == self._pushes[side]:
            await self._pushed.wait()
        for _ in range(CALMS):
            if (left := self._last[side] + CALM_SECONDS - time.monotonic()) <= 0:
                return
            await asyncio.sleep(left)


def main() -> None:
    """Serves until SIGTERM, by the same steps as `flower-superlink`."""
    os.umask(0o077)
    pragmas: Any = vars(sql_mixin)
    pragmas["SQLITE_PRAGMAS"] = tuple((dict(pragmas["SQLITE_PRAGMAS"]) | {"busy_timeout": LOCK_MILLISECONDS}).items())
    _refuse_false_answers()
    _clean_seldom()
    config = _parse_superlink_lifespan_config()
    listening = OwnSocket(socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((config.host, config.port))
    served: Any = Waiting(Direct(create_app(config, SuperLinkLifespan)))
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
