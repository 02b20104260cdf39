"""Headless Chromium by its debugging pipe: enough of the protocol to open a page, press keys and look around."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WHY_NOT = "Chromium is not installed (apt-get install chromium)"
PATIENCE = 60.0  # seconds for an answer: a loaded machine is slow, a hanging browser is an error
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
)


class Browser:
    """One browser with one page. Used as a context."""

    def __init__(self) -> None:
        self._home = tempfile.mkdtemp(prefix="chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [str(CHROMIUM), *FLAGS, *sandbox, f"--user-data-dir={self._home}", "--remote-debugging-pipe"]
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words, "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(shell, pass_fds=(theirs_in, theirs_out), stdout=quiet, stderr=quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        os.set_blocking(self._in, False)
        self._buffer, self._count, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._home, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer; events on the way are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._count
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Goes to a page and waits until its script has drawn it."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, expression: str) -> None:
        """Waits until an expression of the page is true."""
        ends = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < ends, f"{expression} did not become true"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key."""
        codes = {
            "Tab": 9,
            "Enter": 13,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Home": 36,
            "End": 35,
        }
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def told(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind since the page was opened."""
        self.value("0")
        return [event["params"] for event in self.events if event.get("method") == method]

    def complaints(self) -> list[Any]:
        """Errors of the script, refusals of the content policy, and dialogs."""
        logged = [one["entry"]["text"] for one in self.told("Log.entryAdded") if one["entry"]["level"] == "error"]
        return logged + self.told("Runtime.exceptionThrown") + self.told("Page.javascriptDialogOpening")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            try:
                part = os.read(self._in, 1 << 20)
            except BlockingIOError:
                assert time.monotonic() < ends, "the browser does not answer"
                time.sleep(0.005)
                continue
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
