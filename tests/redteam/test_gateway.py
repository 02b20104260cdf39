"""Attacks on the port that sites reach: by whoever reaches it, and by a registered site. Real processes, over TLS."""

import base64
import contextlib
import datetime
import hashlib
import os
import resource
import socket
import ssl
import time
import warnings
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.task_identity import TaskIdentity
from redteam.test_deployment import raw

from tacit.deploy.operate.certificates import make_node_key
from tacit.deploy.operate.connections import announce as announce_length
from tacit.deploy.server.messages import answer
from tacit.deploy.server.node import FleetNode, NotLetIn

MIB = 1 << 20
PUSH, OBJECT, BEAT = "push-messages", "push-object", "send-node-heartbeat"


class Server:
    """A federation of two sites whose server is up, and what an attack needs of it."""

    def __init__(self, federation, processes):
        self.federation, self.processes = federation, processes
        self.log = federation.server / "gateway.log"
        self.nodes = {}

    def peak(self):
        """The most memory that gateway and SuperLink ever had, in MiB."""
        pids = [self.processes.running[name].pid for name in ("gateway", "SuperLink")]
        status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        return sum(int(text.partition("VmHWM:")[2].split()[0]) for text in status) / 1024

    def plain(self):
        return socket.create_connection(("127.0.0.1", self.federation.port), timeout=10)

    def tls(self):
        context = ssl.create_default_context(cafile=str(self.federation.server / "ca.crt"))
        return context.wrap_socket(self.plain(), server_hostname="127.0.0.1")

    def node(self, name):
        """A site's node, which joins where it has not."""
        if name not in self.nodes:
            self.nodes[name] = self.new_node(name)
            self.nodes[name].join(died=False)
        return self.nodes[name]

    def new_node(self, name):
        return FleetNode(self.federation.site(name), server=self.federation.address)

    def post(self, path, body, *, proof=b"", sent=None):
        """The status of one request, of whose body only `sent` bytes are written, or all; 0 where the server hung up."""
        with self.tls() as line, contextlib.suppress(OSError):
            with contextlib.suppress(OSError):
                line.sendall(head(path, len(body), proof) + body[:sent])
            return int(line.recv(64).split()[1])
        return 0

    def new_log(self, since):
        return self.log.read_text()[since:]


@pytest.fixture(scope="module")
def server(up):
    made = Server(*up)
    yield made
    for node in made.nodes.values():
        node.leave()


@pytest.fixture
def many_files():
    """This process may have so many open files that it can attack with them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip("this process may not open enough files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def head(path, length, proof):
    start = f"POST /v1/fleet/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\n"
    return start.encode() + proof + b"Content-Length: %d\r\n\r\n" % length


def proof(folder, *, seconds=0.0, signed_by=None, time=None):
    """A request's signed headers, as Flower's nodes write them, so many seconds ahead."""
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    stamp = (time or now.isoformat()).encode()
    key, signer = (
        serialization.load_ssh_private_key((each / "node.key").read_bytes(), None)
        for each in (folder, signed_by or folder)
    )
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    shown = base64.b64encode(key.public_key().public_bytes(*form))
    signature = base64.b64encode(signer.sign(stamp, ec.ECDSA(hashes.SHA256())))
    return b"flwr-public-key: %s\r\nflwr-timestamp: %s\r\nflwr-signature: %s\r\n" % (shown, stamp, signature)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A folder with a key that nobody registered."""
    folder = tmp_path_factory.mktemp("stranger")
    make_node_key(folder)
    return folder


def test_a_stranger_does_not_fill_the_servers_memory_with_bodies_that_it_parses_before_it_refuses(server, stranger):
    quiet, since = server.peak(), len(server.log.read_text())
    empty_messages = b"\x12\x00" * (6 * MIB)
    for mark in (b"", proof(stranger)):
        assert server.post(PUSH, empty_messages, proof=mark) in (0, 401, 413)
        assert server.post(OBJECT, empty_messages[: 5 * MIB], proof=mark) in (0, 401)
    assert server.peak() - quiet < 16
    assert "127.0.0.1  refused (401): its key is not registered" in server.new_log(since)


def test_a_stranger_is_refused_before_a_byte_of_its_body_is_read(server, stranger):
    for mark in (b"", proof(stranger)):
        for path in (PUSH, OBJECT, BEAT):
            assert server.post(path, b"\x12\x00" * 500, proof=mark, sent=0) == 401


def test_a_request_that_a_registered_key_did_not_sign_now_is_refused_before_its_body(server, stranger):
    site, other = (server.federation.site(name) for name in ("client-0", "client-1"))
    stamp = datetime.datetime.now().isoformat()
    wrong = {
        "old": proof(site, seconds=-400),
        "of tomorrow": proof(site, seconds=86400),
        "signed by another site": proof(site, signed_by=other),
        "signed by a stranger": proof(site, signed_by=stranger),
        "without a zone": proof(site, time=stamp),
        "no time": proof(site, time="now"),
        "two keys": proof(site) + proof(stranger).split(b"\r\n")[0] + b"\r\n",
        "no signature": proof(site).rpartition(b"flwr-signature")[0],
    }
    told = {name: server.post(BEAT, b"x", proof=mark, sent=0) for name, mark in wrong.items()}
    assert told == dict.fromkeys(wrong, 401)
    beat = SendNodeHeartbeatRequest(heartbeat_interval=30.0)
    beat.node.node_id = server.node("client-0").node.node_id
    assert server.post(BEAT, beat.SerializeToString(), proof=proof(site)) == 200


@pytest.mark.parametrize(
    ("path", "size"),
    [(BEAT, 2048), ("pull-messages", 2048), ("confirm-message-received", 2048), (PUSH, 40 << 10), (OBJECT, 6 * MIB)],
)  # fmt: skip
def test_a_registered_site_cannot_send_more_than_its_path_is_for(server, path, size):
    mark = proof(server.federation.site("client-0"))
    assert server.post(path, bytes(size), proof=mark, sent=0) == 413


def test_no_request_is_smuggled_behind_one_that_a_registered_site_has_signed(server):
    control = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    mark = proof(server.federation.site("client-0"))
    smuggled = raw(server.federation, head(BEAT, 0, mark) + control)
    assert smuggled == [401, 403]  # the first by the SuperLink: it names no node
    chunked = head(BEAT, 0, mark + b"Transfer-Encoding: chunked\r\n")
    assert raw(server.federation, chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (len(control), control)) == [501]


def test_a_registered_site_that_sends_pieces_slowly_holds_neither_itself_nor_others_up(server):
    site = server.federation.site("client-0")
    node, other = server.node("client-0"), server.node("client-1")
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            line = stack.enter_context(server.tls())
            line.sendall(head(OBJECT, 5 * MIB, proof(site)) + b"x")
        began = time.monotonic()
        for each in (node, other, node, other):
            each.beat()
        assert time.monotonic() - began < 5


def test_a_registered_site_has_one_announcement_on_its_way_so_that_sixteen_at_once_keep_nobody_waiting(server):
    """Each takes SQLite's lock for a quarter of a second, and who waits for that lock has no turn."""
    mark, other = proof(server.federation.site("client-0")), server.node("client-1")
    with server.tls() as first, server.tls() as second:
        first.sendall(head(PUSH, 100, mark) + b"x")
        time.sleep(0.3)
        second.sendall(head(PUSH, 100, mark) + bytes(100))
        second.settimeout(1.0)
        with pytest.raises(TimeoutError):
            second.recv(1)
        other.look()
        first.sendall(bytes(99))
        second.settimeout(20)
        assert second.recv(64).startswith(b"HTTP/1.1 4")


@pytest.fixture
def run(server, monkeypatch):
    """A run that the SuperLink takes for running, made in its own database, with a question to each site."""
    from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    manager = get_federation_manager(is_simulation=False)
    _, factory = get_objectstore_linkstate_factories(str(server.federation.server / "superlink.db"), manager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # by alembic
        return Run(server, factory.state())


class Run:
    def __init__(self, server, state):
        from flwr.common.constant import NOOP_FLWR_AID
        from flwr.supercore.constant import NOOP_FEDERATION_ID
        from sqlalchemy import text

        with state.session() as session:
            self.id = state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, "of no program")
            session.execute(
                text("UPDATE task SET starting_at = pending_at, running_at = pending_at WHERE type = 'of no program'")
            )
        self.server, self.state = server, state

    def ask(self, node):
        """Stores a question of the server's to a node, and returns it."""
        question = written(Message(RecordDict({"x": ConfigRecord({"y": 1})}), node, "train", ttl=600), self.id, 1)
        session = self.state.start_session(self.id)
        self.state.store_message_and_object_tree(question, get_object_tree(question), session)
        return question


def written(message, run, source):
    message.metadata.__dict__["_run_id"] = run
    message.metadata.__dict__["_src_node_id"] = source
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def announce(node, message, tree):
    from flwr.app.message import remove_content_from_message

    proto = message_to_proto(remove_content_from_message(message))
    return PushMessagesRequest(node=node.node, messages_list=[proto], message_object_trees=[tree]).SerializeToString()


def pushed(server, node, name, message, tree=None):
    body = announce(node, message, tree or get_object_tree(message))
    return server.post(PUSH, body, proof=proof(server.federation.site(name)))


def test_a_registered_site_cannot_ask_another_in_the_servers_name(server, run):
    liar, victim = server.node("client-0"), server.node("client-1")
    forged = written(Message(RecordDict(), victim.node.node_id, "train", ttl=600), run.id, 1)
    told = pushed(server, liar, "client-0", forged)
    assert victim.look() is None
    assert told == 400


def test_a_registered_site_cannot_answer_for_another(server, run):
    liar, victim = server.node("client-0"), server.node("client-1")
    question = run.ask(victim.node.node_id)
    answer = written(Message(RecordDict(), reply_to=question), run.id, victim.node.node_id)
    assert pushed(server, liar, "client-0", answer) == 400
    assert pushed(server, victim, "client-1", answer) == 200


CALLS = {
    "pull-messages": PullMessagesRequest(),
    "push-messages": PushMessagesRequest(),
    "pull-object": PullObjectRequest(object_id="0" * 64),
    "push-object": PushObjectRequest(object_id="0" * 64),
    "confirm-message-received": ConfirmMessageReceivedRequest(message_object_id="0" * 64),
}


def test_nobody_calls_in_the_name_of_another_site_or_of_the_server(server, run):
    victim, mine = server.node("client-1"), server.federation.site("client-0")
    run.ask(victim.node.node_id)
    tokens = (b"", b"flwr-task-token: guessed\r\n", b"flwr-task-token: a\r\nflwr-task-token: b\r\n")
    for path, asked in CALLS.items():
        asked.node.node_id = victim.node.node_id
        assert server.post(path, asked.SerializeToString(), proof=proof(mine)) == 401
        asked.node.node_id = 1
        for token in tokens:
            sent = head(path, asked.ByteSize(), token + b"Connection: close\r\n").replace(b"fleet", b"runtime")
            assert raw(server.federation, sent + asked.SerializeToString(), port=server.federation.inner_port) == [401]
    assert victim.look() is not None


def test_a_registered_site_does_not_stall_everybody_with_thousands_of_parts_of_an_answer(server, run):
    liar, honest = server.node("client-0"), server.node("client-1")
    answer = written(Message(RecordDict(), reply_to=run.ask(liar.node.node_id)), run.id, liar.node.node_id)

    def tree(parts):
        leaves = [ObjectTree(object_id=hashlib.sha256(b"%d" % each).hexdigest()) for each in range(parts - 1)]
        return ObjectTree(object_id=answer.object_id, children=leaves)

    began = time.monotonic()
    assert pushed(server, liar, "client-0", answer, tree(40_001)) in (0, 413)
    assert pushed(server, liar, "client-0", answer, tree(300)) == 400
    assert pushed(server, liar, "client-0", answer, ObjectTree(object_id="0" * 64, children=[tree(10)])) == 400
    honest.beat()
    assert time.monotonic() - began < 5
    assert pushed(server, liar, "client-0", answer, tree(250)) == 200  # an honest one may have so many


def test_whoever_opens_silent_connections_shuts_nobody_out_and_writes_no_log(server, many_files):
    gateway = server.processes.running["gateway"].pid
    before = resource.prlimit(gateway, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway, resource.RLIMIT_NOFILE, (1024, before[1]))
    joined, other, since = server.node("client-0"), server.node("client-1"), server.log.stat().st_size
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(1400):
                stack.enter_context(server.plain())
            began = time.monotonic()
            joined.beat()  # on the connection that it has,
            late = server.new_node("client-1")  # and on new ones
            late.node = other.node
            late.beat()
            late._client.close()
            assert time.monotonic() - began < 5
            assert len(os.listdir(f"/proc/{gateway}/fd")) < 400
    finally:
        resource.prlimit(gateway, resource.RLIMIT_NOFILE, before)
    said = server.new_log(since)
    assert "Traceback" not in said
    assert len(said) < 12_000


def test_a_gateway_without_a_free_file_says_so_in_few_lines_and_goes_on(server, many_files):
    gateway, since = server.processes.running["gateway"].pid, server.log.stat().st_size
    before = resource.prlimit(gateway, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{gateway}/fd")) + 20, before[1]))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(server.plain())
            time.sleep(2)
            said = server.new_log(since)
            assert "no connection can be accepted" in said
            assert len(said) < 12_000
    finally:
        resource.prlimit(gateway, resource.RLIMIT_NOFILE, before)
    server.node("client-0").beat()


@pytest.mark.parametrize("spoken", ["nothing", "TLS", "half a head"])
def test_a_connection_on_which_nobody_proves_a_key_ends_within_seconds(server, spoken):
    with server.plain() if spoken == "nothing" else server.tls() as line:
        began = time.monotonic()
        if spoken == "half a head":
            line.sendall(head(BEAT, 1, b"")[:-2])
        with contextlib.suppress(OSError):
            line.settimeout(20)
            assert line.recv(1) == b""
    assert time.monotonic() - began < 8


def test_a_registered_site_has_few_connections_and_others_have_theirs(server):
    site, other = server.federation.site("client-0"), server.node("client-1")
    beat = head(BEAT, 0, proof(site))
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(server.tls()) for _ in range(40)]
        for line in lines:
            line.sendall(beat)
            assert line.recv(4096).startswith(b"HTTP/1.1 401")  # by the SuperLink: this body names no node
        other.beat()
        assert sum(map(is_open, lines)) == 16


def is_open(line):
    line.settimeout(0.2)
    try:
        while line.recv(4096):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def test_refused_strangers_are_logged_at_a_limited_rate(server):
    since = server.log.stat().st_size
    for _ in range(300):
        with server.tls() as line:
            line.sendall(b"nonsense\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 400"
    assert server.new_log(since).count("\n") <= 124  # of two minutes, and a line that counts the rest


def test_a_site_whose_key_is_not_registered_is_told_why(server, stranger):
    (stranger / "ca.crt").write_bytes((server.federation.server / "ca.crt").read_bytes())
    node = FleetNode(stranger, server=server.federation.address)
    with pytest.raises(NotLetIn, match="not registered here, or its machine's clock is more than 5 minutes off"):
        node.join(died=False)
    node._client.close()


@pytest.mark.parametrize("size", [4 << 20, 17 * MIB], ids=["in one piece", "in pieces"])
def test_the_longest_honest_answers_pass(server, run, size):
    node = server.node("client-0")
    body = os.urandom(size)
    announce_length(server.federation.server, size + MIB)  # as the run's server does before anybody trains
    message = answer({"words": "x" * (1 << 19)}, body, to=run.ask(node.node.node_id))
    message = written(message, run.id, node.node.node_id)
    names = [each.object_id for each in iterate_object_tree(get_object_tree(message))]
    node.push(message)
    assert all(run.state.object_store.get(name) for name in names)
