"""Many sites on one machine: does the run end, how long are its rounds, and how much memory has a site between them?

    python bench/sites.py --sites 40 --rounds 2
    python bench/sites.py --sites 4 --rounds 30 --steps 1  # what a round costs beside its training
    python bench/sites.py --sites 4 --rounds 10 --sums --model mlp  # under masks, against Paillier that 3 of 4 sites open
    python bench/sites.py --sites 2 --rounds 1  # small
    python bench/sites.py --sites 3 --rounds 1 --sums --key-bits 2048  # small

Memory is the proportional set size (Linux, /proc/PID/smaps_rollup) of all processes of a site, in MB: what is shared with
other processes is divided among them.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

from tacit.crypto.threshold import fewest_shares
from tacit.deploy.operate.init import init
from tacit.deploy.operate.processes import Processes, descendants, free_port
from tacit.deploy.operate.serve import follow, register, start_server, start_sites, submit
from tacit.experiment import Experiment

KINDS = {
    "masks": ("protect.kind=masks",),
    "paillier": (
        "protect.kind=paillier",
        'protect.key={{bits = {bits}, shape = "safe-prime"}}',
        "protect.threshold={t}",
    ),
}  # of secret sums


def memory(pid: int) -> float:
    """MB of a process and all it started."""
    total = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):  # it has ended since
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def rounds(experiment: Experiment, sites: int) -> list[float]:
    """The seconds of each round of a deployment on this machine, which is printed as it goes."""
    seconds = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "federation"
        made = init(place, sites=str(sites), experiment=experiment, host="127.0.0.1", port=free_port())
        with Processes(home=made.home) as processes:
            began = time.monotonic()
            start_server(made, processes)
            register(made, processes)
            start_sites(made, processes)
            print(f"{sites} sites started in {time.monotonic() - began:.0f} s", flush=True)
            submit(made, processes, resume=False, force=False, **{"join-seconds": 600})

            def observe(record: dict) -> None:
                seconds.append(record["seconds"])
                used = [memory(processes.running[f"site {name}"].pid) for name in made.sites]
                text = f"round {record['round'] + 1}: {record['seconds']:.1f} s, {record['answered']} of {record['cohort']} sites"
                sizes = f"a site has {statistics.mean(used):.0f} MB (at most {max(used):.0f})"
                print(f"{text}; {sizes}, the SuperLink {memory(processes.running['SuperLink'].pid):.0f}", flush=True)

            summary = follow(made, processes, since=began, observe=observe)
            took = f"{statistics.median(seconds):.2f} s a round, all in {time.monotonic() - began:.0f} s"
            print(f"{summary['rounds']} rounds, {took}", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="logr", help="logr has 650 parameters, mlp 15,010")
    parser.add_argument(
        "--sums", action="store_true", help="secret sums of records: masks, then Paillier with shared keys"
    )
    parser.add_argument("--key-bits", type=int, default=3072, help="of Paillier")
    chosen = parser.parse_args()
    words = (f"data.clients={chosen.sites}", f"train.rounds={chosen.rounds}", f"model.name={chosen.model}")
    base = ("data.examples_per_client=30", *words)
    if not chosen.sums:
        rounds(Experiment.load("digits", (*base, f"train.local_steps={chosen.steps}")), chosen.sites)
        return
    few = chosen.sites - 1
    sums = ("train.local_steps=1", "privacy.kind=distributed", "privacy.epsilon=50", f"privacy.fewest_reports={few}")
    found = {}
    for kind, more in KINDS.items():
        words = [word.format(bits=chosen.key_bits, t=fewest_shares(of=chosen.sites, colluding=1)) for word in more]
        print(kind, flush=True)
        found[kind] = statistics.median(rounds(Experiment.load("digits", (*base, *sums, *words)), chosen.sites))
    print(f"a round with masks took {found['masks'] / found['paillier']:.2f} of one with Paillier (target <= .7)")


if __name__ == "__main__":
    main()
