"""The process of `tacit compare` that trains: tasks come in as lines on standard input, events go out as lines on
standard output.

It has one thread and no children, and ends when its input ends, so nothing is left behind if the comparison is killed.
What a run prints goes to standard error, which is the worker's log file."""

import json
import os
import queue
import threading
import tomllib
from pathlib import Path
from typing import Any, TextIO

import torch

from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.simulation import run


def attempt(task: dict[str, str], wire: TextIO) -> None:
    def say(kind: str, **facts: Any) -> None:
        wire.write(json.dumps({"kind": kind, **facts}) + "\n")
        wire.flush()

    folder = Path(task["folder"])
    try:
        run(
            Experiment(**tomllib.loads(task["experiment"])),
            out=folder,
            resume=(folder / "experiment.toml").exists(),
            ready=lambda _, past: say("round", rounds=len(past)),
            observe=lambda record: say("round", rounds=record["round"] + 1, trained=True),
            page=False,  # the comparison has one of its own; `tacit report` makes that of a single run
        )
    except TacitError as error:
        say("failed", sentence=" ".join(str(error).split()))
    else:
        say("done")


def main() -> None:
    torch.set_num_threads(1)
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a model of the user's own may print
    tasks: queue.Queue[dict[str, str]] = queue.Queue()

    def listen() -> None:
        with os.fdopen(os.dup(0), "rb", buffering=0) as lines:  # not sys.stdin, whose lock a fork would inherit
            for line in lines:
                tasks.put(json.loads(line))
        os._exit(0)  # like a kill, which a run survives

    threading.Thread(target=listen, daemon=True).start()
    while True:
        attempt(tasks.get(), wire)


if __name__ == "__main__":
    main()
