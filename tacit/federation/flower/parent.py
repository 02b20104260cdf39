"""A ServerApp that does not outlive its SuperLink: Flower's own exit can wait for a server that is gone."""

import os
import threading
import time

LOOK_SECONDS = 1.0
GRACE_SECONDS = 10.0  # for Flower's own way out


def end_with_parent() -> None:
    """Ends this process, within `GRACE_SECONDS` and a look, after the one that started it has ended; returns at once.

    The end is `os._exit`: nothing is flushed or closed, as in a kill. What a run needs to go on is on disk before every question.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
