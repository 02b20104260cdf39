"""What a person at a terminal sees."""

from typer.testing import CliRunner


def refused(done) -> str:
    """The sentence of a refusal; it must be the only thing said."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    return sentence


def compare(experiment, *, vary, settings, seeds, out, resume=False, force=False, jobs=None, as_json=True, attack=None):
    """What `tacit compare` says and the code that it ends with. Raises what it refuses."""
    from tacit.cli.app import app

    words = [
        one for name, values in (("--vary", vary), ("--set", settings)) for value in values for one in (name, value)
    ]
    for name, value in (("--seeds", seeds), ("--out", out), ("--jobs", jobs), ("--attack", attack)):
        words += [] if value is None else [name, str(value)]
    words += ["--resume"] * resume + ["--force"] * force + ["--json"] * as_json
    done = CliRunner().invoke(app, ["compare", *([experiment] if experiment else []), *words], catch_exceptions=False)
    print(done.stdout)
    return done.exit_code
