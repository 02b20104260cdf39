"""What answers at a site: it takes the messages of the site's SuperNode and hands them to the site's own Tacit.

Flower would install and run the app that the server sent. Here that app is never loaded: the code that decides is the one
the site installed, so a tampered app cannot reach the rows or pass by the ledger. One process serves all messages, which
also saves Flower's start of a fresh process for each.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.runtime.tracing import RuntimeTracingInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from tacit.engine.flower.client import respond
from tacit.site.site import Site

LOOK_SECONDS = 0.1

Reply = Callable[[Message, Context], Message]


def answer_for(folder: Path, *, address: str, alive: Callable[[], bool]) -> None:
    """Answers the SuperNode at `address` for the site in `folder` as long as `alive()`."""
    site = Site(folder)
    answer_with(lambda message, _: respond(site, message), address=address, alive=alive)


def answer_with(reply: Reply, *, address: str, alive: Callable[[], bool]) -> None:
    """Answers with whatever `reply` makes of a message and its context, as a ClientApp does."""
    look = _client(address, RuntimeTracingInterceptor(), RuntimeVersionHttpInterceptor(component_name="SuperExec"))
    while alive():
        try:
            found = look.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if found.HasField("task") and found.token:
                _answer(reply, address, found.token)
                continue
        except httpx.HTTPError:  # the SuperNode is starting or has gone: alive() tells which
            pass
        time.sleep(LOOK_SECONDS)
    look.close()


def _answer(reply: Reply, address: str, token: str) -> None:
    """One message: pull, answer, push. What happens within the site is in its log."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    client = _client(address, RuntimeTracingInterceptor(), version, RuntimeTokenHttpInterceptor(token))
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heart.start()
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, reply(message, context), context)
        push_task_output(client=client, context=context, sub_status=SubStatus.COMPLETED, details="")
    finally:
        heart.stop()
        client.close()


def _client(address: str, *interceptors: Any) -> RuntimeHttpClient:
    once = make_simple_http_retry_invoker()
    once.max_tries = 1  # the loop above tries again, and looks whether the SuperNode is alive in between
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback within the site's machine
        root_certificates=None,
        interceptors=list(interceptors),
        retry_invoker=once,
    )
