"""Tells a SuperLink which node keys may join: `python -m tacit.deploy.server.register CONNECTION NAME=KEY.pub...`

The same as `flwr supernode register` for each key, in one process. A key that is known already is left alone."""

import sys
from pathlib import Path

import httpx
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import RegisterNodeRequest


def register(connection: str, keys: dict[str, Path]) -> None:
    """Registers every key under its site's name: the server holds a node to the name that its key was registered under.

    A key that is known already keeps the name it has. Raises: httpx.HTTPStatusError for any other word of the SuperLink's.
    """
    client = init_http_client_from_connection(read_superlink_connection(connection))
    try:
        for name, key in keys.items():
            try:
                client.RegisterNode(request=RegisterNodeRequest(public_key=try_load_public_key(key), name=name))
            except httpx.HTTPStatusError as error:
                if "already" not in error.response.text.lower():
                    raise
    finally:
        client.close()


if __name__ == "__main__":
    register(sys.argv[1], {name: Path(key) for name, _, key in (word.partition("=") for word in sys.argv[2:])})
