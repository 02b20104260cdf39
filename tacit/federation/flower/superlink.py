"""Flower's SuperLink as Tacit starts it: `python -m tacit.federation.flower.superlink OPTIONS...`, the options of flower-superlink.

Three things differ. Its files are for their owner only. A writer waits for SQLite's lock longer than the five seconds in
which forty sites may all want it. And on loopback, the Control and the Runtime API, which start programs as this user, answer
this user and root only: Linux tells whose the other end of a connection is (/proc/net/tcp).
"""

import os
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from flwr.supercore import sql_mixin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app

LOCK_MILLISECONDS = "60000"
ESTABLISHED = "01"  # include/net/tcp_states.h; sockets in later states no longer say whose they were
TABLE = Path("/proc/net/tcp")
OPEN = "/v1/fleet/"  # every request there is signed by a node's key

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def own(app: App) -> App:
    """The app, whose Control and Runtime API answer processes of this user and of root alone; all others get 403.

    Guarantee: under Linux it asks the kernel whose the other end of the connection is, so nothing that a request says of itself
    counts. The Fleet API is left open: each of its requests is signed by a node's key.

    Assumes: the SuperLink listens on loopback. Elsewhere than under Linux nobody is refused.
    """

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPEN) or _mine(scope["client"], scope["server"]):
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return guarded


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


def _mine(client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
    if not TABLE.exists():
        return True  # not Linux: docs/how-to-deploy.md says to give the server a machine of its own
    return client is not None and server is not None and owner(client, server) in (os.geteuid(), 0)


def _hex(end: tuple[str, int]) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(end[0]))
    return f"{number:08X}:{end[1]:04X}"


def _wait_longer() -> None:
    """Sets SQLite's patience with a lock for every connection that is opened from now on."""
    words: Any = vars(sql_mixin)
    words["SQLITE_PRAGMAS"] = tuple((dict(words["SQLITE_PRAGMAS"]) | {"busy_timeout": LOCK_MILLISECONDS}).items())


def main() -> None:
    """Serves until SIGTERM, by the same steps as `flower-superlink`; what it writes is for its owner only."""
    os.umask(0o077)
    _wait_longer()
    config = _parse_superlink_lifespan_config()
    app = create_app(config, SuperLinkLifespan)
    uvicorn.run(
        app=own(app), host=config.host, port=config.port, access_log=False, workers=1,  # pyright: ignore[reportArgumentType]
        ssl_keyfile=config.ssl_keyfile, ssl_certfile=config.ssl_certfile, log_level="warning",
    )  # fmt: skip


if __name__ == "__main__":
    main()
