"""Checkpoints beside the run: on an accelerator a round takes less time than writing its state to disk.

The ledger never waits here: it is paid before anything of a round is read. A crash loses the rounds since the last checkpoint that
was written; on a device such rounds are repeated as new releases, and paid again (tacit/build/release.py), so that nothing is
under-reported.
"""

import threading
from types import TracebackType
from typing import Any

import torch

from tacit.engine.folder import Folder
from tacit.types import State

PAUSE = 0.25  # seconds between two: writing takes the process's time too


class Checkpoints:
    """Writes states into a run's folder: at once where they are in memory, else in a thread, the newest first; the last always.

    With `once` every state is written before `write` returns, wherever it is.

    Raises: what writing raised, at the next state or at the end.
    """

    def __init__(self, folder: Folder, device: torch.device, *, once: bool = False):
        self._folder, self._device = folder, device
        self._newest: tuple[State, int, Any] | None = None
        self._failed: BaseException | None = None
        self._news, self._ended = threading.Condition(), False
        beside = device.type == "cuda" and not once
        self._thread = threading.Thread(target=self._write, daemon=True) if beside else None

    def __enter__(self) -> "Checkpoints":
        if self._thread:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread:
            with self._news:
                self._ended = True
                self._news.notify()
            self._thread.join()
            if kind is None:
                self._raise()

    def write(self, state: State, *, round: int) -> None:
        """Keeps a state from which a round starts. Assumes: its tensors are not changed any more."""
        if self._thread is None:
            self._folder.checkpoint(state, round=round)
            return
        self._raise()
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        with self._news:
            self._newest = (state, round, ready)
            self._news.notify()

    def _raise(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _write(self) -> None:
        stream = torch.cuda.Stream(self._device)  # so that copies do not stand between the kernels of the next round
        while True:
            with self._news:
                self._news.wait_for(lambda: self._newest is not None or self._ended)
                if self._newest is None:
                    return
                (state, round, ready), self._newest = self._newest, None
            try:
                with torch.cuda.stream(stream):
                    stream.wait_event(ready)
                    copied = state.to(torch.device("cpu"))
                self._folder.checkpoint(copied, round=round)
            except BaseException as error:  # noqa: BLE001 - told to the run
                self._failed = error
                return
            with self._news:
                self._news.wait_for(lambda: self._ended, timeout=PAUSE)
