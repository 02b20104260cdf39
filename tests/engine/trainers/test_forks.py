"""Clients in processes of their own, where a fork of this one could not train: torch's engine for another device has threads."""

import subprocess
import sys

RUN = """
import sys, tacit, torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as another_device

another_device("somewhere")  # torch then begins threads for it with the first backward pass, as for a GPU
if sys.argv[1] == "after":
    torch.ones(1, requires_grad=True).sum().backward()
experiment = tacit.Experiment(
    data={"clients": 4, "examples_per_client": 20},
    train={"rounds": 1, "local_steps": 1},
    privacy={"kind": "local", "epsilon": 3.0},
    run={"workers": 2},
)
seen = tacit.run(experiment, out=sys.argv[2], page=False)
print(seen.summary["notes"])
"""


def told(when, out):
    command = [sys.executable, "-W", "ignore", "-c", RUN, when, str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_process_that_has_used_another_device_trains_its_clients_in_one_process_and_says_so(tmp_path):
    alone, forked = told("after", tmp_path / "after"), told("before", tmp_path / "before")
    assert (alone.returncode, forked.returncode) == (0, 0), alone.stderr + forked.stderr
    assert "one process" in alone.stdout
    assert "one process" not in forked.stdout
