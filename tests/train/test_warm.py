import subprocess
import sys

FAILING = """
import sys, time
import torch
from tacit.training import stacked as warm

def slowly(devices):  # as a device wakes up: within torch, beside Python
    rows, until = torch.ones(300, 300), time.monotonic() + 1.5
    while time.monotonic() < until:
        torch.mm(rows, rows)

warm._load = slowly
warm.warm(["cuda"])
sys.exit(3)
"""


def test_a_run_that_is_refused_while_a_device_wakes_up_ends_as_it_would_without():
    ended = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
