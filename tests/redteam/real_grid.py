"""A real SuperLink behind its real gateway on loopback, with the HTTP grid in the test's own hands and nodes that push anything.

The ServerApp that Flower starts only hands over its token: what a test gathers goes over the grid that a deployed server has.
"""

import hashlib
import json
import threading
import time
from dataclasses import dataclass, field

from flwr.common.serde import message_from_proto
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata, ObjectTree, PushObjectRequest
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

import tacit
from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import Processes, free_port
from tacit.deploy.operate.serve import register, start_server, submit
from tacit.deploy.server.node import FleetNode, understood

SUPERLINK = 1  # the SuperLink's node
WAIT_SECONDS = 120.0
BEAT_SECONDS = 1800.0  # the longest that Flower takes: a node that says nothing for twice as long is gone
APP = """
import json, os, pathlib, time
from flwr.serverapp import ServerApp
app = ServerApp()
home = pathlib.Path(os.environ["TACIT_FEDERATION"])

@app.main()
def main(grid, context):
    cert = (home / "server" / "ca.crt").read_text()
    line = {"address": grid._addr, "token": grid._token, "run": context.run_id, "cert": cert}
    (home / "line.part").write_text(json.dumps(line))
    os.replace(home / "line.part", home / "line.json")
    while not (home / "over").exists():
        time.sleep(0.1)
"""


class RealGrid:
    """A federation whose server is up; `grid` is its HttpGrid, `nodes` are its sites' keys, each with a line to the gateway."""

    def __init__(self, folder, *, sites=2):
        experiment = tacit.Experiment(name="line", train={"rounds": 1}, privacy={"kind": "local", "epsilon": 1.0})
        self.federation = init(folder, sites=str(sites), experiment=experiment, host="127.0.0.1", port=free_port())
        (self.federation.app / "tacit_app" / "server_app.py").write_text(APP)
        self.processes = Processes(home=self.federation.home)

    def __enter__(self):
        self.processes.__enter__()
        start_server(self.federation, self.processes)
        register(self.federation, self.processes)
        submit(self.federation, self.processes, resume=False, force=False)
        path = self.federation.folder / "line.json"
        ends = time.monotonic() + WAIT_SECONDS
        while not path.exists():
            assert time.monotonic() < ends, "the ServerApp did not start"
            time.sleep(0.1)
        line = json.loads(path.read_text())
        self.run = line["run"]
        self.grid = HttpGrid(line["address"], False, line["cert"].encode(), token=line["token"])
        self.grid.set_run(Run.create_empty(run_id=self.run))
        self.nodes = []
        for name in self.federation.sites:
            self.nodes.append(FleetNode(self.federation.site(name), server=self.federation.address))
            self.nodes[-1].join(died=False)
            self.nodes[-1]._client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(node=self.nodes[-1].node, heartbeat_interval=BEAT_SECONDS)
            )
        self.as_server()
        return self

    def as_server(self):
        """A Message asks who makes it."""
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run, 1, SUPERLINK

    def __exit__(self, *error):
        for node in self.nodes:
            node.leave()
        self.grid.close()
        (self.federation.folder / "over").touch()
        self.processes.__exit__(*error)

    @property
    def ids(self):
        return [node.node.node_id for node in self.nodes]


def framed(kind, body, children=()):
    """An object as Flower stores it: its type, its children and its length, then its body."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def name_of(content):
    return hashlib.sha256(content).hexdigest()


@dataclass
class Pushed:
    """What a node pushes: a tree of names, the contents that it sends for some of them, and the message's name."""

    tree: ObjectTree
    contents: list[bytes] = field(default_factory=list)
    message: str = ""  # left out: the tree's root
    metadata: dict = field(default_factory=dict)
    error: Error | None = None

    def named(self):
        """The contents by their names."""
        return {name_of(content): content for content in self.contents}


def chain(*contents):
    """A tree in which each content is the only child of the one after it; the last is the root."""
    tree = None
    for content in contents:
        tree = ObjectTree(object_id=name_of(content), children=[tree] if tree is not None else [])
    return Pushed(tree, list(contents))


def next_question(node):
    """The envelope and the tree of the next question to a node, or None."""
    reply = understood(lambda: node._client.PullMessages(PullMessagesRequest(node=node.node)))
    return (reply.messages_list[0], reply.message_object_trees[0]) if reply.messages_list else None


def metadata(node, asked, **changes):
    """The envelope of an answer to a question."""
    known = asked.metadata
    values = {"run_id": known.run_id, "src_node_id": node.node.node_id, "dst_node_id": SUPERLINK, "group_id": ""}
    values |= {"reply_to_message_id": known.message_id, "created_at": time.time(), "message_type": known.message_type}
    return Metadata(**(values | {"ttl": max(1.0, known.created_at + known.ttl - time.time() - 1)} | changes))


def push(node, asked, pushed):
    """Pushes what it is told as the answer to a question."""
    named = {"message_id": pushed.message or pushed.tree.object_id}
    envelope = metadata(node, asked, **(named | pushed.metadata))
    holds = {"error": pushed.error} if pushed.error else {"content": ProtoRecordDict()}
    message = ProtoMessage(metadata=envelope, **holds)
    reply = node._client.PushMessages(
        PushMessagesRequest(node=node.node, messages_list=[message], message_object_trees=[pushed.tree])
    )
    for content in pushed.contents:
        name = name_of(content)
        if name in reply.objects_to_push:
            node._client.PushObject(
                PushObjectRequest(
                    node=node.node, run_id=asked.metadata.run_id, object_id=name, object_content=content,
                    session_id=reply.session_id,
                )
            )  # fmt: skip
    return reply


def honest(node, asked, answer):
    """Answers as a site does. `answer` makes Tacit's message from the question's."""
    before = (TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id)
    asked_message = message_from_proto(asked)
    asked_message.metadata.__dict__["_message_id"] = asked.metadata.message_id
    node.push(answer(asked_message))
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = before


class Answering(threading.Thread):
    """Has a function answer every question to a node until it is stopped; an error of the line to it ends nothing."""

    def __init__(self, node, reply):
        super().__init__(daemon=True)
        self._node, self._reply, self._over, self.errors = node, reply, threading.Event(), []

    def run(self):
        while not self._over.is_set():
            found = next_question(self._node)
            if found is None:
                time.sleep(0.05)
                continue
            try:
                self._reply(self._node, *found)
            except Exception as error:  # noqa: BLE001 - what a liar is told does not matter
                self.errors.append(error)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self.join()
