"""A lying server that sends a site more than it can hold: a real site process against a real HTTPS server on this machine."""

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from redteam.lying_server import RUN, Server, experiment

from tacit.deploy.operate.certificates import make_authority, make_node_key, make_server
from tacit.deploy.server.gather import opened
from tacit.deploy.server.messages import BODY, BYTES, WHOLE_BYTES, new_nonce, question, read
from tacit.deploy.server.node import PIECE_BYTES, UNMET_BYTES, Account, Budget, FleetNode
from tacit.deploy.site.agreement import longest_question
from tacit.deploy.site.agreement import read as read_agreement
from tacit.errors import BadInput

MOST_SENT = 768 << 20  # by the server, in all: a site that reads whatever comes shows it well before
MOST_GROWN = 200  # MiB, by which a site may grow
PIECE = PullObjectResponse(
    object_found=True, object_available=True, object_content=bytes(PIECE_BYTES)
).SerializeToString()
EMPTY = b"\x1a\x00" * (30 << 20 >> 1)  # 15 million trees of no field


class Flood(BaseHTTPRequestHandler):
    """Flower's Fleet API as a lying server has it: `server.lie` says how."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        call, server = self.path.rpartition("/")[2], self.server
        server.asked[call] = server.asked.get(call, 0) + 1
        try:
            getattr(self, call.replace("-", "_"), self.nothing)()
        except OSError:
            self.close_connection = True  # the site has hung up

    def nothing(self):
        self.say(b"")

    def say(self, raw, *, chunked=False):
        self.send_response(200)
        self.send_header(*(("transfer-encoding", "chunked") if chunked else ("content-length", str(len(raw)))))
        self.end_headers()
        if not chunked:
            self.wfile.write(raw)
            self.server.sent += len(raw)

    def activate_node(self):
        self.say(ActivateNodeResponse(node_id=1).SerializeToString())

    def send_node_heartbeat(self):
        self.say(SendNodeHeartbeatResponse(success=True).SerializeToString())

    def pull_messages(self):
        if self.server.lie == "without a length":
            self.say(b"", chunked=True)
            block = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
            while self.server.sent < MOST_SENT:
                self.wfile.write(block)
                self.server.sent += 1 << 20
            self.close_connection = True
        elif self.server.lie == "of empty messages":
            self.say(EMPTY if self.server.sent < MOST_SENT else b"")
        elif self.server.lie == "of many pieces":
            pieces = [ObjectTree(object_id=f"{number:064x}") for number in range(400)]
            named = f"{self.server.asked['pull-messages']:064x}"
            metadata = Metadata(message_id=named, run_id=1, message_type="train")
            answer = PullMessagesResponse(
                messages_list=[Message(metadata=metadata)],
                message_object_trees=[ObjectTree(object_id=named, children=pieces)],
            )
            self.say(answer.SerializeToString())
        else:
            self.nothing()

    def pull_object(self):
        if self.server.sent < MOST_SENT:
            self.say(PIECE)
        else:
            self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def flood(tmp_path):
    """A server that floods, and a real process that answers for a site of it."""
    site = tmp_path / "site"
    Server(site, experiment())
    make_authority(tmp_path, name="them")
    make_server(tmp_path, hosts=("127.0.0.1",))
    make_node_key(site)
    (site / "ca.crt").write_bytes((tmp_path / "ca.crt").read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flood)
    server.daemon_threads, server.lie, server.asked, server.sent = True, "", {}, 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with (site / "site.toml").open("a") as file:
        file.write(f'server = "127.0.0.1:{server.server_address[1]}"\n')
    command = [sys.executable, "-m", "tacit", "deploy", "site", str(site)]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        yield server, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        server.shutdown()
        server.server_close()


def until(true, *, seconds=120.0):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)


def memory(process, what):
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(rf"{what}:\s+(\d+) kB", status.read())[1]) / 1024


def looks(server):
    return server.asked.get("pull-messages", 0)


@pytest.mark.parametrize("lie", ["without a length", "of empty messages", "of many pieces"])
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="memory is read as Linux tells it")
def test_a_server_that_sends_answers_without_end_does_not_drain_a_sites_memory(flood, lie):
    server, process = flood
    until(lambda: looks(server) >= 3)
    quiet = memory(process, "VmRSS")
    with open(f"/proc/{process.pid}/clear_refs", "w") as peak:
        peak.write("5")
    server.lie, before = lie, looks(server)
    until(lambda: looks(server) >= before + (8 if lie == "of many pieces" else 3) or server.sent >= MOST_SENT)
    time.sleep(2.0)
    grown = memory(process, "VmHWM") - quiet
    print(f"{lie}: from {quiet:.0f} by {grown:.0f} MiB, {server.sent >> 20} MiB sent")
    assert grown < MOST_GROWN
    assert process.poll() is None
    server.lie, before = "", looks(server)
    until(lambda: looks(server) > before + 1)  # and it goes on


@pytest.fixture
def agreed(tmp_path):
    """A site's line to its server, before and after it has agreed to a run."""
    asking = Server(tmp_path / "site", experiment())
    make_authority(asking.folder, name="them")
    make_node_key(asking.folder)
    return asking, FleetNode(asking.folder, server="127.0.0.1:1")


def test_what_a_site_holds_follows_from_what_it_has_agreed_to_and_from_its_own_limit(agreed):
    asking, line = agreed
    assert line._most() == UNMET_BYTES
    asking.agree()
    agreement = read_agreement(asking.folder, RUN)
    assert agreement is not None
    assert len(asking.body()) < longest_question(agreement) < 1 << 20
    assert line._most() == UNMET_BYTES + 2 * longest_question(agreement)
    path = asking.folder / "budget.toml"
    path.write_text("most_bytes = 1000\n" + path.read_text())
    assert line._most() == UNMET_BYTES + 1000


def test_messages_that_come_at_once_share_one_budget_and_give_it_back():
    budget = Budget(lambda: 100)
    first, second = Account(budget), Account(budget)
    first.take(60)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        second.take(60)
    second.take(40)
    first.close()
    second.take(60)
    second.close()
    assert budget.held == 0


def long_question(body):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    return question({"kind": "train", "round": 0}, body, node=1, seconds=1, nonce=new_nonce())


def fetched(message):
    """A message as a site fetches it, part by part."""
    contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    pull = Account(Budget(lambda: 100 << 20)).charged(contents.__getitem__)
    return read(opened(message.object_id, {name: pull(name) for name in contents}))


def test_a_question_of_many_pieces_is_fetched_also_where_all_of_them_are_alike():
    body = bytes(3 * WHOLE_BYTES)
    assert fetched(long_question(body))[1] == body


def test_one_piece_that_a_table_names_a_thousand_times_is_not_put_together():
    message = long_question(b"")
    piece = ConfigRecord({BYTES: bytes(1 << 20)})
    for place in range(400):
        message.content[f"{BODY}-{place}" if place else BODY] = piece
    tracemalloc.start()
    with pytest.raises(BadInput, match="names one record twice"):
        fetched(message)
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


ODD = {
    "an array": ArrayRecord({"bytes": Array("uint8", (9,), "tacit.wire", bytes(9))})["bytes"].deflate(),
    "a long table": b"RecordDict  %d\x00" % (3 << 20) + bytes(3 << 20),
    "a record of empty items": b"ConfigRecord  100000\x00" + b"\x0a\x00" * 50_000,
}


@pytest.mark.parametrize("part", ODD)
def test_a_part_that_no_question_has_is_refused_before_it_is_opened(part):
    pull = Account(Budget(lambda: 1 << 31)).charged(lambda name: ODD[part])
    with pytest.raises(BadInput, match=r"a part that no message has|more than texts and bytes"):
        pull("it")
