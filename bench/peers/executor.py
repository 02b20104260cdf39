"""One process that answers all messages of a SuperNode, as a ClientApp would: Flower's own way starts a process for each."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
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

LOOK_SECONDS = 0.1
LOG = logging.getLogger("tacit.deploy.site")

Reply = Callable[[Message, Context], Message]


def answer_with(reply: Reply, *, address: str, alive: Callable[[], bool]) -> None:
    """Answers with whatever `reply` makes of a message and its context, as a ClientApp does: one message at a time.

    Each is pulled by a thread of its own. A SuperNode whose server was killed in the middle of a message hands out a task whose
    content never comes, and the wait for it must not keep the site from the next message.
    """
    look = _client(address, RuntimeTracingInterceptor(), RuntimeVersionHttpInterceptor(component_name="SuperExec"))
    here: SimpleQueue[Task] = SimpleQueue()
    while alive():
        try:
            found = look.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if found.HasField("task") and found.token:
                Thread(target=_pull, args=(address, found.token, here), daemon=True).start()
            _answer(reply, here.get(timeout=LOOK_SECONDS))
        except Empty:
            continue
        except httpx.HTTPError:  # the SuperNode is starting or has gone: alive() tells which
            time.sleep(LOOK_SECONDS)
    look.close()


@dataclass(frozen=True)
class Task:
    """A message that is here, and the line and the heartbeat that belong to its task."""

    client: RuntimeHttpClient
    heart: HeartbeatSender
    message: Message
    context: Context


def _pull(address: str, token: str, here: "SimpleQueue[Task]") -> None:
    """Waits for the content of one task; one that cannot be had is dropped, and the server asks again."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    client = _client(address, RuntimeTracingInterceptor(), version, RuntimeTokenHttpInterceptor(token))
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heart.start()
    try:
        message, context, _, _ = pull_task_input(client)
    except Exception as error:  # noqa: BLE001 - whatever it was, the site goes on
        LOG.info("a message could not be had: %s", error)
        _end(client, heart)
    else:
        here.put(Task(client, heart, message, context))


def _answer(reply: Reply, task: Task) -> None:
    """One message: answer, push. What happens within the site is in its log."""
    try:
        push_message(task.client, reply(task.message, task.context), task.context)
        push_task_output(client=task.client, context=task.context, sub_status=SubStatus.COMPLETED, details="")
    finally:
        _end(task.client, task.heart)


def _end(client: RuntimeHttpClient, heart: HeartbeatSender) -> None:
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
