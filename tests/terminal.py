"""What a person at a terminal sees, and what a terminal gives a program: Ctrl-C is not ignored."""

import signal


def hears_ctrl_c() -> None:
    """For `preexec_fn`: a shell starts background jobs with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def refused(done) -> str:
    """The sentence of a refusal; it must be the only thing said."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    return sentence
