"""Child processes of a federation: started with a log each, ended with everything they started, closed to other users."""

import contextlib
import ctypes
import os
import resource
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tacit.errors import BadInput, TacitError

MASK = 0o077
FOLDER, FILE = 0o700, 0o600  # whatever the umask: a federation's files hold keys, rows and updates


@contextlib.contextmanager
def closed() -> Iterator[None]:
    before = os.umask(MASK)
    try:
        yield
    finally:
        os.umask(before)


def close(folder: Path) -> None:
    """Takes a folder, and all in it but links, from everybody but its owner. Raises: BadInput for what is another user's."""
    for root, folders, files in os.walk(folder):
        for path, mode in ((Path(root), FOLDER), *((Path(root, name), FILE) for name in files)):
            try:
                if not path.is_symlink() and (now := path.stat().st_mode & 0o777) & MASK:
                    path.chmod(now & mode)
            except FileNotFoundError:
                continue  # gone in between, as SQLite's journals are
            except PermissionError:
                why = "is open to others and belongs to another user: give it to the one who runs this"
                raise BadInput(f"{path} {why}.") from None
        folders[:] = [name for name in folders if not Path(root, name).is_symlink()]


PR_SET_PDEATHSIG = 1  # linux/prctl.h
LAST_WORDS = 3  # lines that a program printed say why it ended
PORTS = range(20_000, 32_768)  # below those that Linux gives to outgoing connections
STOP_SECONDS = 5.0  # between asking a program to end and ending it
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
QUIET = OFFLINE | {  # nothing is looked up, counted or installed over the network
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")  # a notebook sets them; JSON in colours cannot be read


def _path() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs. This Python's come first on the path, and no proxy stands between local processes."""
    direct = ["127.0.0.1", "localhost", *os.environ.get("NO_PROXY", "").split(",")]
    local = ",".join(dict.fromkeys(filter(None, direct)))
    own = {name: value for name, value in os.environ.items() if name not in COLOURS}
    return own | QUIET | {"FLWR_HOME": str(home), "NO_PROXY": local, "no_proxy": local, "PATH": _path()}


def program(name: str) -> str:
    """The path of one of Flower's programs. Raises: BadInput where it is not installed."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise BadInput(f'{name} is not installed: pip install "tacit[flower]"')
    return found


class Processes:
    """Programs that end together. Used as a context: whatever happens inside, none is left over.

    Guarantee: every program leads a session of its own and writes to a log that is its owner's. Under Linux it ends with this
    process.
    """

    def __init__(self, *, home: Path):
        self._environment = environment(home)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self, name: str, command: Sequence[str | Path], *, log: Path, cwd: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> int:  # fmt: skip
        """Starts a program that appends what it says to `log`, and returns its process. Raises: OSError."""
        with closed():
            log.parent.mkdir(parents=True, exist_ok=True)
            file = log.open("ab")
        with file:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command], env=self._environment | (environment or {}), cwd=cwd, umask=MASK,
                start_new_session=True, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                preexec_fn=_prepare,
            )  # fmt: skip
        self._logs[name] = log
        return self.running[name].pid

    def call(self, command: Sequence[str | Path], *, seconds: float, cwd: Path | None = None) -> str:
        """Runs a program to its end and returns what it printed. Raises: TacitError where it fails, or takes longer."""
        name = Path(str(command[0])).name
        try:
            done = subprocess.run(
                [str(part) for part in command], env=self._environment, cwd=cwd, capture_output=True, text=True,
                timeout=seconds, check=False, umask=MASK,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TacitError(f"{name} did not end in {seconds:g} s: look at the server's log and try again.") from None
        if done.returncode:
            raise TacitError(f"{name} failed: {_last_words(done.stderr or done.stdout)}")
        return done.stdout

    def refuse_ended(self) -> None:
        """Refuses to go on where a program has ended, with whatever code. Raises: TacitError with its last words."""
        for name, process in self.running.items():
            if process.poll() is not None:
                words = _last_words(self._logs[name].read_text("utf-8", "replace"))
                again = (
                    f"more in {self._logs[name]}; once that is mended, start again, with --resume if the run had begun"
                )
                raise TacitError(f"{name} ended with code {process.returncode}: {words} ({again})")

    def stop(self, name: str | None = None) -> None:
        """Ends one program, or all, the last started first, and what they had started in sessions of its own, where /proc tells."""
        names = [name] if name else list(reversed(self.running))
        family = [pid for each in names for pid in descendants(self.running[each].pid)]
        for each in names:
            _send(self.running[each].pid, signal.SIGTERM)
        ends = time.monotonic() + STOP_SECONDS
        for each in names:
            process = self.running.pop(each)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, ends - time.monotonic()))
            _send(process.pid, signal.SIGKILL)
            process.wait()
        for pid in family:  # Flower's own children lead sessions of theirs, and may be busy
            _send(pid, signal.SIGKILL)


def _stat(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return not Path("/proc/self").exists()  # gone in between; or a machine that does not tell


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int(_stat(folder.name)[1]), []).append(int(folder.name))
    found, open_ = [], [pid]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _prepare() -> None:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """A port that is free now, and that no outgoing connection takes before a program listens on it."""
    while taken(port := secrets.choice(PORTS)):
        pass
    return port


def taken(port: int) -> bool:
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def reach(host: str, port: int, *, authority: Path, seconds: float = 5.0) -> str | None:
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with (
            socket.create_connection((host, port), timeout=seconds) as line,
            context.wrap_socket(line, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted ({error.verify_message})"
    except (OSError, ssl.SSLError) as error:
        return f"{error}"


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-LAST_WORDS:]) if lines else "it said nothing"


LOCK = ".site.lock"
BOOT = Path("/proc/sys/kernel/random/boot_id")


def lock_folder(folder: Path) -> bool:
    """Locks a site's folder for this process. Returns whether an earlier one ran in this very folder, and is dead. Raises:
    BadInput.
    """
    file = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)  # stays open: closing it would free the lock
    try:
        os.lockf(file, os.F_TLOCK, 0)
    except OSError:
        os.close(file)
        raise BadInput(f"Another process answers for the site in {folder}: stop it first.") from None
    # its inode and the machine's boot, so that no copied folder takes a process that may be alive for a dead one
    boot = BOOT.read_bytes() if BOOT.exists() else os.urandom(16)
    watermark = boot + str(os.fstat(file).st_ino).encode()
    known = os.pread(file, len(watermark) + 1, 0) == watermark
    os.ftruncate(file, 0)
    os.pwrite(file, watermark, 0)
    return known


LOOK_SECONDS = 1.0
GRACE_SECONDS = 10.0  # for Flower's own way out, which can wait for a server that is gone


def end_with_parent() -> None:
    """Has this process end soon after the one that started it, by `os._exit`: what a run needs is on disk before every question."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
