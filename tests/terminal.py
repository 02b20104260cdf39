"""What a person at a terminal sees."""


def refused(done) -> str:
    """The sentence of a refusal; it must be the only thing said."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    return sentence
