"""Processes that have torch and Tacit loaded when they start: real ones, with a pid, pipes, signals and an exit code of their own.

Half of the time of a short command is the loading of torch. A server (multiprocessing's) loads it once and forks for each command;
what a command does is what `python -m tacit` does after its imports, which `test_version` starts for real.
"""

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tacit.cli.app", "tacit.simulation.run", "tacit.simulation.compare", "sklearn.metrics"])


class Started:
    """A process that was started; its output goes to files, so that it never waits for a reader."""

    def __init__(self, target, words, *, cwd, env=None):
        self.words, self._home = [str(word) for word in words], tempfile.TemporaryDirectory()
        self._out, self._err = Path(self._home.name, "out"), Path(self._home.name, "err")
        arguments = (target, self.words, str(cwd), dict(env or os.environ), str(self._out), str(self._err))
        self._process = CONTEXT.Process(target=_live, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def wait(self, timeout=120):
        """Its exit code, output and complaints. Raises AssertionError, after killing it, where it does not end in time."""
        self._process.join(timeout)
        late = self._process.is_alive()
        if late:
            self._process.kill()
            self._process.join()
        out, err = (path.read_text() if path.exists() else "" for path in (self._out, self._err))
        self._home.cleanup()
        assert not late, (self.words, out, err)
        return subprocess.CompletedProcess(self.words, self._process.exitcode, out, err)

    def kill(self):
        """Ends it at once."""
        self._process.kill()
        self.wait()


def tacit(*words, cwd, env=None):
    """Starts `tacit ...`."""
    return Started("tacit", words, cwd=cwd, env=env)


def script(path, *, cwd, env=None):
    """Starts a Python file."""
    return Started(str(path), [], cwd=cwd, env=env)


def _live(target, words, cwd, env, out, err):
    """The life of such a process: its own session, folder, environment and files, and the signals as a shell leaves them."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.path[:] = [*env.get("PYTHONPATH", "").split(":"), *(part for part in sys.path if "tests" not in part and part)]
    with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr):
        if target == "tacit":
            sys.argv = ["tacit", *words]
            from tacit.cli.app import main

            main()
        else:
            sys.argv = [target]
            sys.path.insert(0, str(Path(target).parent))
            runpy.run_path(target, run_name="__main__")
