"""Many sites on one machine: does the run end, how long are its rounds, and how much memory has a site between them?

    python bench/sites.py --sites 40 --rounds 2
    python bench/sites.py --sites 2 --rounds 1  # small

Memory is the proportional set size (Linux, /proc/PID/smaps_rollup) of all processes of a site, in MB: what is shared with
other processes is divided among them.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import Processes, descendants, free_port
from tacit.deploy.operate.serve import follow, register, start_server, start_sites, submit
from tacit.experiment import Experiment

SETTINGS = ("train.local_steps=10", "data.examples_per_client=30")


def memory(pid: int) -> float:
    """MB of a process and all it started."""
    total = 0
    for each in (pid, *descendants(pid)):
        lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--sites", type=int, default=40)
    words.add_argument("--rounds", type=int, default=2)
    chosen = words.parse_args()
    experiment = Experiment.load("digits", (*SETTINGS, f"data.clients={chosen.sites}", f"train.rounds={chosen.rounds}"))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "federation"
        made = init(place, sites=str(chosen.sites), experiment=experiment, host="127.0.0.1", port=free_port())
        with Processes(home=made.home) as processes:
            began = time.monotonic()
            start_server(made, processes)
            register(made, processes)
            start_sites(made, processes)
            print(f"{chosen.sites} sites started in {time.monotonic() - began:.0f} s", flush=True)
            submit(made, processes, resume=False, force=False, **{"join-seconds": 600})

            def observe(record: dict) -> None:
                used = [memory(processes.running[f"site {name}"].pid) for name in made.sites]
                text = f"round {record['round'] + 1}: {record['seconds']:.1f} s, {record['answered']} of {record['cohort']} sites"
                sizes = f"a site has {statistics.mean(used):.0f} MB (at most {max(used):.0f})"
                print(f"{text}; {sizes}, the SuperLink {memory(processes.running['SuperLink'].pid):.0f}", flush=True)

            summary = follow(made, processes, since=began, observe=observe)
            print(f"{summary['rounds']} rounds, all in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
