"""The loop that answers for a site, where Flower hands out what never comes."""

import threading
from types import SimpleNamespace
from typing import ClassVar

from tacit.engine.flower import executor


class Line:
    """Hands out tasks as a SuperNode does; `stuck` has no content."""

    tokens: ClassVar = ["stuck", "whole", "broken", "last"]

    def __init__(self, token=None):
        self.token = token

    def AcquireTask(self, request):
        token = Line.tokens.pop(0) if Line.tokens else ""
        return SimpleNamespace(HasField=lambda name: bool(token), token=token)

    def close(self):
        pass


def test_a_message_that_never_comes_does_not_keep_the_site_from_the_next(monkeypatch):
    answered, forever = [], threading.Event()

    def pull(client):
        if client.token == "stuck":
            forever.wait()
        if client.token == "broken":
            raise RuntimeError("the run is over")
        return client.token, "context", None, None

    quiet = SimpleNamespace(start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(executor, "_client", lambda address, *parts: Line(getattr(parts[-1], "_token", None)))
    monkeypatch.setattr(executor, "RuntimeTokenHttpInterceptor", lambda token: SimpleNamespace(_token=token))
    monkeypatch.setattr(executor, "HeartbeatSender", lambda beat: quiet)
    monkeypatch.setattr(executor, "make_task_heartbeat_fn_http", lambda client: None)
    monkeypatch.setattr(executor, "pull_task_input", pull)
    monkeypatch.setattr(executor, "push_message", lambda client, message, context: answered.append(message))
    monkeypatch.setattr(executor, "push_task_output", lambda **words: None)
    executor.answer_with(lambda message, context: f"answer to {message}", address="", alive=lambda: len(answered) < 2)
    forever.set()
    assert answered == ["answer to whole", "answer to last"]
