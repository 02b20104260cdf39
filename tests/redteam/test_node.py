"""What a lying server answers below the questions: where it is not a question that is crafted, but the line it comes on."""

import gzip
import logging
import time
from types import SimpleNamespace

import httpx
import pytest
from federation.flower.test_executor import Line, answered
from flwr.app import ConfigRecord
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, ObjectTree, PullObjectResponse

from tacit.deploy.operate.certificates import make_authority, make_node_key
from tacit.deploy.server import node
from tacit.deploy.server.node import MOST_NAME, FleetNode, named
from tacit.deploy.site.layout import Plain


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(node, "LOOK_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(node, "COME_SECONDS", 0.01)
    monkeypatch.setattr(node, "RETRY_SECONDS", (0.01, 0.02))


@pytest.fixture
def line(tmp_path):
    """A node whose server answers what a test wants."""
    made = FleetNode.__new__(FleetNode)
    made._folder, made.node = tmp_path, node.Node(node_id=1)
    return made


def raising(error):
    def call(ask):
        raise error

    return call


@pytest.mark.parametrize(
    "pull",
    [
        raising(ValueError("Invalid protobuf response payload")),
        raising(RecursionError()),
        lambda ask: PullMessagesResponse(messages_list=[Message()]),
    ],
    ids=["no message", "too deep", "a message without its tree"],
)
def test_an_answer_that_is_none_of_flowers_does_not_end_a_site(line, pull):
    line._client = SimpleNamespace(PullMessages=pull)
    with pytest.raises(httpx.HTTPError) as caught:
        line.look()
    assert answered(Line(caught.value, "later"), 1) == ["answer to later"]


def test_a_message_of_many_pieces_is_dropped_when_it_has_more_bytes_than_the_site_holds(joined):
    pulled, piece = [], ConfigRecord({"bytes": bytes(1 << 18)}).deflate()

    def answers(request):
        pulled.append(request)
        found = PullObjectResponse(object_found=True, object_available=True, object_content=piece)
        return httpx.Response(200, content=found.SerializeToString())

    line = joined(answers)
    tree = ObjectTree(object_id="0", children=[ObjectTree(object_id=str(i)) for i in range(1, 1000)])
    for _ in range(2):  # what was given up holds nothing
        pulled.clear()
        with pytest.raises(ValueError, match="more than 1048576 bytes"):
            line.fetch(1, tree)
        assert 3 < len(pulled) < 100


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("content-length", "3"), ("content-length", "3")],
        [("transfer-encoding", "chunked")],
        [("content-length", "²")],
    ],
    ids=["none", "two", "in pieces", "no number"],
)
def test_an_answer_without_exactly_one_length_is_not_read(joined, headers):
    read = []

    def body():
        read.append(True)
        yield b"abc"

    def answers(request):
        return httpx.Response(200, headers=[(name, value.encode("utf-8")) for name, value in headers], content=body())

    with pytest.raises(httpx.RemoteProtocolError, match="does not say its one length"):
        joined(answers).look()
    assert not read


def test_a_server_that_announces_what_never_comes_does_not_fill_a_site_with_threads():
    stuck = Line(*["stuck"] * 200)
    ends = time.monotonic() + 1.0
    node.answer(stuck, lambda message: message, stopped=lambda: time.monotonic() > ends)  # type: ignore[arg-type]
    left = len(stuck.looks)
    stuck.forever.set()
    assert left == 200 - node.MOST_FETCHES


@pytest.mark.parametrize(
    ("group", "said"),
    [("0", "train, round 1"), ("41", "train, round 42"), ("", "train"), ("-1", "train -1"), ("²", "train ²")],
)
def test_a_site_says_the_round_that_it_is_asked_for_as_people_count(group, said):
    assert named("train", group) == said
    assert len(named("train", "9" * 10_000)) <= MOST_NAME


def test_what_a_server_sends_cannot_write_lines_into_a_sites_log():
    record = logging.makeLogRecord({"msg": "asked: %s", "args": ("train\n12:00:00  joined\x1b[2J",)})
    words = Plain("%(message)s").format(record)
    assert words.isprintable()


@pytest.fixture
def joined(tmp_path):
    """A node with its key, and a server that answers as `answers` says; everything in between is the real line."""
    (tmp_path / "budget.toml").write_text("epsilon = 1.0\ndelta = 1e-5\n")
    make_authority(tmp_path, name="them")
    make_node_key(tmp_path)

    def make(answers):
        made = FleetNode(tmp_path, server="server:9092")
        made._client._client._transport = httpx.MockTransport(answers)
        return made

    return make


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_server_cannot_send_a_sites_answers_on_to_an_address_in_the_sites_own_network(joined, status):
    asked = []

    def answers(request):
        asked.append(request.url.host)
        return httpx.Response(status, headers={"location": "http://10.0.0.7/admin"})

    with pytest.raises(httpx.HTTPError):
        joined(answers).look()
    assert asked == ["server"]


def test_an_answer_that_grows_when_it_is_unpacked_is_not_unpacked(joined):
    packed = gzip.compress(bytes(1 << 20))

    def answers(request):
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(packed))

    with pytest.raises(httpx.RemoteProtocolError, match="packed"):
        joined(answers).look()


def test_an_honest_answer_passes(joined):
    assert joined(lambda request: httpx.Response(200, headers={"content-length": "0"})).look() is None
