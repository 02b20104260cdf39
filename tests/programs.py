"""Runs a program of bench/ or experiments/ as `python PROGRAM ...` would, in a process that has imported Tacit already."""

import multiprocessing
import os
import sys
from pathlib import Path

PRELOADED = ["tacit", "tacit.simulation", "tacit.lab.attacks", "sklearn.datasets", "programs"]
SERVER = multiprocessing.get_context("forkserver")  # no fork of this process, which may have threads
SERVER.set_forkserver_preload(PRELOADED)


def run(program: Path, words: list[str], place: Path, *, seconds: float) -> tuple[int | None, str]:
    """The exit code, None where it took too long, and everything that it printed."""
    said = place / "said.txt"
    process = SERVER.Process(target=_main, args=(str(program), words, str(place), str(said)))
    process.start()
    process.join(seconds)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    return code, said.read_text("utf-8") if said.exists() else ""


def _main(program: str, words: list[str], place: str, said: str) -> None:
    line = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(line, 1)
    os.dup2(line, 2)
    os.chdir(place)
    sys.argv = [program, *words]
    sys.path.insert(0, str(Path(program).parent))
    main = vars(sys.modules["__main__"])
    main |= {"__file__": program, "__spec__": None}
    exec(compile(Path(program).read_text("utf-8"), program, "exec"), main)
