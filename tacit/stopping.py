"""Being stopped: SIGTERM ends a command as Ctrl-C does, with one sentence, and the exit code says which it was."""

import signal

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as a shell counts


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C would have closed is closed."""


def stop_on_term() -> None:
    """Lets SIGTERM end this process as Ctrl-C does, so that what it started ends with it; a second one changes nothing."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def exit_code(error: KeyboardInterrupt) -> int:
    """What a command that was stopped returns.

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated())
    (130, 143)
    """
    return int(TERMINATED if isinstance(error, Terminated) else INTERRUPTED)
