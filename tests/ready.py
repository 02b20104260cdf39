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
from unittest import mock

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["tacit.cli.app", "tacit.simulation", "tacit.lab.grid", "tacit.lab.worker", "sklearn.metrics"]
)


class Started:
    """A process that was started; its output goes to files, so that it never waits for a reader."""

    def __init__(self, target, words, *, cwd, env=None):
        self.words, self._home = [str(word) for word in words], tempfile.TemporaryDirectory()
        self._out, self._err = Path(self._home.name, "out"), Path(self._home.name, "err")
        arguments = (target, self.words, str(cwd), dict(env or os.environ), str(self._out), str(self._err))
        self._process = CONTEXT.Process(target=_live, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def said(self):
        """What it has printed until now."""
        return self._out.read_text() if self._out.exists() else ""

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

    def alive(self):
        """Whether it still runs."""
        return self._process.is_alive()

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


class Worker:
    """A worker of a comparison, as `tacit.lab.worker` starts it: pipes for tasks and events, a log for the rest."""

    def __init__(self, errors, environment):
        (theirs_in, mine_in), (mine_out, theirs_out) = (CONTEXT.Pipe(duplex=False) for _ in range(2))
        arguments = (os.getcwd(), environment, theirs_in, theirs_out, errors.name)
        self._process = CONTEXT.Process(target=_work, args=arguments)
        self._process.start()
        self.pid, self.terminate, self.kill = self._process.pid, self._process.terminate, self._process.kill
        self.stdin, self.stdout = os.fdopen(os.dup(mine_in.fileno()), "wb"), os.fdopen(os.dup(mine_out.fileno()), "rb")
        for end in (theirs_in, mine_in, mine_out, theirs_out):
            end.close()

    def wait(self, timeout=None):
        """Its exit code. Raises subprocess.TimeoutExpired where it does not end in time."""
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired("worker", timeout)
        return self._process.exitcode


@contextlib.contextmanager
def workers():
    """Comparisons of this process start such workers; those of `tests/compare` that are killed and stopped are fresh ones."""
    from tacit.lab import worker as pool

    with mock.patch.object(pool, "_start", Worker):
        yield


def _work(cwd, env, tasks, events, log):
    """The life of a worker."""
    for end, number in ((tasks, 0), (events, 1)):
        os.dup2(end.fileno(), number)
        end.close()
    _own(cwd, env, ((2, log),))
    from tacit.lab.worker import main

    main()


def _own(cwd, env, files):
    """A session, a folder, an environment and files of its own, and the signals as a shell leaves them."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, path in files:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.path[:] = [*env.get("PYTHONPATH", "").split(":"), *(part for part in sys.path if "tests" not in part and part)]


def _live(target, words, cwd, env, out, err):
    """The life of a command or of a file."""
    _own(cwd, env, ((1, out), (2, err)))
    with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr):
        if target == "tacit":
            sys.argv = ["tacit", *words]
            from tacit.cli.app import main

            main()
        else:
            sys.argv = [target]
            sys.path.insert(0, str(Path(target).parent))
            runpy.run_path(target, run_name="__main__")
