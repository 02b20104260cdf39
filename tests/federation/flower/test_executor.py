"""The loop that answers for a site, where the server fails, forgets the node, or announces what never comes."""

import asyncio
import threading
from types import SimpleNamespace

import httpx
import pytest

from tacit.deploy.server import node, superlink
from tacit.deploy.server.node import NotLetIn, Task, answer


def failed(status):
    """What a client raises at an answer with this status."""
    request = httpx.Request("POST", "https://server/v1/fleet/pull-messages")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


class Line:
    """A node's line to a server that does, look after look, what it is told to."""

    def __init__(self, *looks, beats=()):
        self.looks, self.beats, self.sent = list(looks), list(beats), []
        self.node, self.forever = SimpleNamespace(node_id=1), threading.Event()

    def look(self):
        found = self.looks.pop(0) if self.looks else None
        if isinstance(found, Exception):
            raise found
        return (1, found) if found else None

    def fetch(self, run, tree):
        if tree == "stuck":
            self.forever.wait()
        if tree == "broken":
            raise RuntimeError("the run is over")
        return Task(SimpleNamespace(metadata=SimpleNamespace(run_id=run), name=tree), tree)

    def push(self, message):
        if isinstance(message, Exception):
            raise message
        self.sent.append(message)

    def beat(self):
        found = self.beats.pop(0) if self.beats else None
        if isinstance(found, Exception):
            raise found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(node, "LOOK_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(node, "COME_SECONDS", 0.01)
    monkeypatch.setattr(node, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(node, "BEAT_SECONDS", 0.01)


def answered(line, count):
    answer(line, lambda message: f"answer to {message.name}", stopped=lambda: len(line.sent) >= count)  # type: ignore[arg-type]
    line.forever.set()
    return line.sent


def test_a_message_that_never_comes_does_not_keep_the_site_from_the_next():
    assert answered(Line("stuck", "whole", "broken", "last"), 2) == ["answer to whole", "answer to last"]


@pytest.mark.parametrize(
    "error", [failed(500), failed(503), failed(403), httpx.ConnectError("refused"), httpx.ReadTimeout("")]
)
def test_a_server_that_fails_for_a_while_does_not_end_the_site(error):
    assert answered(Line(error, error, "later"), 1) == ["answer to later"]


def test_a_heartbeat_that_meets_a_locked_database_does_not_end_the_site():
    line = Line(*[None] * 20, "later", beats=[failed(500), failed(503), RuntimeError("odd"), httpx.ReadTimeout("")])
    assert answered(line, 1) == ["answer to later"]
    assert line.beats == []


def test_a_server_that_has_forgotten_the_node_is_told_apart_so_that_the_site_joins_again():
    with pytest.raises(NotLetIn):
        answered(Line(failed(401)), 1)
    for word in (failed(401), NotLetIn("gone")):
        with pytest.raises(NotLetIn):
            answered(Line(beats=[word]), 1)


def test_a_server_with_another_certificate_ends_the_site():
    with pytest.raises(httpx.ConnectError):
        answered(Line(httpx.ConnectError("certificate verify failed")), 1)


def test_an_answer_that_cannot_be_sent_does_not_end_the_site():
    line, said = Line("first", "second"), iter([failed(403), "answer to second"])
    answer(line, lambda message: next(said), stopped=lambda: bool(line.sent))  # type: ignore[arg-type,return-value]
    assert line.sent == ["answer to second"]


def test_a_question_is_asked_again_while_the_server_fails_and_not_when_it_refuses(monkeypatch):
    monkeypatch.setattr(node, "RETRY_SECONDS", (0.01, 0.02))
    said = [failed(500), httpx.ConnectError("refused"), "done"]

    def call(ask):
        if isinstance(found := said.pop(0), Exception):
            raise found
        return found

    assert node.patient(call, "ask") == "done"
    said = [failed(403), "never"]
    with pytest.raises(httpx.HTTPStatusError):
        node.patient(call, "ask")


def test_a_look_that_the_server_kept_is_followed_by_another_and_one_that_it_did_not_by_a_pause(monkeypatch):
    monkeypatch.setattr(node, "LOOK_SECONDS", (0.25, 3.0))
    assert [node._pause(took, idle=0.0) for took in (0.0, 0.125, 2.0)] == [0.25, 0.125, 0.0]
    assert [node._pause(took, idle=1000.0) for took in (0.0, 2.0)] == [3.0, 1.0]


def test_what_a_server_announces_is_looked_for_again_only_when_it_has_come_or_is_late(monkeypatch):
    monkeypatch.setattr(node, "COME_SECONDS", 600.0)

    class Slow(Line):
        def fetch(self, run, tree):
            seen.append(len(self.looks))
            return super().fetch(run, tree)

    seen, line = [], Slow("first", "second", *[None] * 5)
    assert answered(line, 2) == ["answer to first", "answer to second"]
    assert seen == [6, 5]


def looks_of(waiting, path, caller):
    scope = {"path": path, "headers": [(b"flwr-public-key", caller), (b"x", b"y")]}
    return asyncio.ensure_future(waiting(scope, None, None))


def test_a_look_waits_until_the_server_has_pushed_and_no_other_site_wakes_it(monkeypatch):
    monkeypatch.setattr(superlink, "HOLD_SECONDS", 600.0)
    monkeypatch.setattr(superlink, "CALM_SECONDS", 0.0)

    async def scenario():
        passed = []

        async def app(scope, receive, send):
            passed.append(scope["path"])

        async def settled():
            for _ in range(10):
                await asyncio.sleep(0)
            return [passed.pop() for _ in range(len(passed))]

        waiting, look = superlink.Waiting(app), "/v1/fleet/pull-messages"
        first = [looks_of(waiting, look, caller) for caller in (b"north", b"coast")]
        assert await settled() == [look, look]  # something may have come before
        second = [looks_of(waiting, look, caller) for caller in (b"north", b"coast")]
        assert await settled() == []
        await waiting({"path": "/v1/fleet/push-object", "headers": []}, None, None)
        assert await settled() == ["/v1/fleet/push-object"]
        await waiting({"path": "/v1/runtime/push-messages", "headers": []}, None, None)
        assert sorted(await settled()) == [look, look, "/v1/runtime/push-messages"]
        await waiting({"path": "/v1/runtime/push-object", "headers": []}, None, None)
        await asyncio.gather(*first, *second, looks_of(waiting, look, b"north"))  # what came in between is not missed
        monkeypatch.setattr(superlink, "HOLD_SECONDS", 0.01)
        await looks_of(waiting, look, b"north")  # and nobody waits for ever

    asyncio.run(scenario())
