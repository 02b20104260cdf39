"""Telling a SuperLink that a node is gone whose process was killed: it would take it for online for another minute."""

import contextlib
import re
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

NUMBER = re.compile(r"SuperNode ID: (\d+)")


def sign_off(folder: Path, *, server: str) -> None:
    """Signs off the node that the site's log names last. Only for a node whose process is known to be dead."""
    log, key = folder / "supernode.log", load_ssh_private_key((folder / "node.key").read_bytes(), None)
    numbers = NUMBER.findall(log.read_text("utf-8", "replace"))
    if not numbers or not isinstance(key, ec.EllipticCurvePrivateKey):
        return
    proofs = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())]
    with (
        FleetHttpClient.from_server_address(server, False, str(folder / "ca.crt"), proofs) as client,
        contextlib.suppress(httpx.HTTPError),  # then it is waited for, as for any node
    ):
        client.DeactivateNode(DeactivateNodeRequest(node_id=int(numbers[-1])))
