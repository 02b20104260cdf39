"""What a terminal gives a program that a background job does not: Ctrl-C is not ignored."""

import signal


def hears_ctrl_c() -> None:
    """For `preexec_fn`: a shell starts background jobs with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
