"""What answers at a site: it takes the messages of the site's node and hands them to the site's own Tacit, in one process.

Flower's own SuperNode would install and run the app that the server sent. Here that app is not even fetched: the code that
decides is the one the site installed, so a tampered app cannot reach the rows or pass by the ledger."""

import contextlib
import ctypes
import logging
import random
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.task_identity import TaskIdentity

from tacit.deploy.server.node import RETRY_SECONDS, FleetNode, NotLetIn, Task, passing

LOG = logging.getLogger("tacit.deploy.site")
BEAT_SECONDS = 20.0  # Flower takes a node for gone when two of its intervals of 30 s have passed
LOOK_SECONDS = (0.25, 3.0)  # between two looks for a message: while a run goes on, and when nothing has come for long
AWAKE_SECONDS = 30.0
MOST_FETCHES = 16  # messages whose content is awaited at once
# a look is followed by a pause fifty times as long: where many sites keep a server busy, they look less often
BUSY = 50.0

Reply = Callable[[Message], Message]


def answer(
    node: FleetNode,
    reply: Reply,
    *,
    stopped: Callable[[], bool] = lambda: False,
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Answers one message after the other until `stopped()`; between two looks it calls `idle`.

    Guarantee: no message ends it. Each content is fetched by a thread of its own, at most `MOST_FETCHES` at once, so that what a
    killed server announced and never sends keeps the site from nothing. Raises: NotLetIn where the server does not know the node;
    httpx.HTTPError for an error that will not pass.
    """
    heart, ready = _Heart(node), SimpleQueue[Task]()
    heart.start()
    last, failures, fetching = time.monotonic(), 0, list[threading.Thread]()
    try:
        while not stopped() and not heart.unknown:
            began, fetching = time.monotonic(), [thread for thread in fetching if thread.is_alive()]
            try:
                announced, failures = node.look() if len(fetching) < MOST_FETCHES else None, 0
            except httpx.HTTPError as error:
                failures = _endure(error, failures)
                continue
            if announced:
                fetching.append(threading.Thread(target=_fetch, args=(node, *announced, ready), daemon=True))
                fetching[-1].start()
                last = time.monotonic()
            pause = _pause(time.monotonic() - began, idle=time.monotonic() - last)
            with contextlib.suppress(Empty):
                _answer(node, reply, ready.get(timeout=pause))
                last = time.monotonic()
            idle()
        if heart.unknown:
            raise NotLetIn("the server does not know the node any more")
    finally:
        heart.stop()


def _pause(took: float, *, idle: float) -> float:
    least, most = LOOK_SECONDS
    return most if idle > AWAKE_SECONDS else min(max(least, BUSY * took), most)


def _endure(error: httpx.HTTPError, failures: int) -> int:
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED:
        raise NotLetIn(error.response.text) from None
    if not passing(error) and not isinstance(error, httpx.HTTPStatusError):
        raise error
    if not failures:
        LOG.info("the server does not answer (%s); asking again", error)
    time.sleep(min(RETRY_SECONDS[0] * 2**failures, RETRY_SECONDS[1]) * random.uniform(0.5, 1.0))
    return min(failures + 1, 10)


def _fetch(node: FleetNode, run: int, tree: ObjectTree, ready: "SimpleQueue[Task]") -> None:
    try:
        ready.put(node.fetch(run, tree))
    except Exception as error:  # noqa: BLE001 - whatever the server sent, the site goes on
        LOG.info("a message could not be had: %s: %s", type(error).__name__, error)


def _answer(node: FleetNode, reply: Reply, task: Task) -> None:
    data = task.message.metadata
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = data.run_id, 1, node.node.node_id
    LOG.info("asked: %s", task.name)
    try:
        node.push(reply(task.message))
    except Exception as error:  # noqa: BLE001 - the answer is kept: the server asks again and gets the same bytes
        LOG.info("an answer could not be sent: %s: %s", type(error).__name__, error)
    else:
        LOG.info("sent: %s", task.name)
    finally:
        task.done()
        _trim()


class _Heart(threading.Thread):
    def __init__(self, node: FleetNode):
        super().__init__(daemon=True)
        self._node, self._ended, self.unknown = node, threading.Event(), False

    def run(self) -> None:
        pause = BEAT_SECONDS
        while not self._ended.wait(pause * random.uniform(0.8, 1.0)):
            try:
                self._node.beat()
                pause = BEAT_SECONDS
            except NotLetIn:
                self.unknown = True
                return
            except Exception as error:  # noqa: BLE001 - a heart that stops would take the node offline
                LOG.info("a heartbeat failed: %s: %s", type(error).__name__, error)
                self.unknown = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401
                # soon at first, then less and less, as an error may say that the server has too much to do
                pause = RETRY_SECONDS[0] if pause == BEAT_SECONDS else min(2 * pause, RETRY_SECONDS[1] - 1)

    def stop(self) -> None:
        self._ended.set()


def _trim() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
