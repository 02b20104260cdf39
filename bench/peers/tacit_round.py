"""Tacit by its real path: `tacit.run` with workers side by side, the ledger, evaluation on the small test set, log and checkpoint.

A round lasts from one call of the observer to the next, so all of that is counted; "inside" is the record's own "seconds".
"""

import tempfile
from typing import Any

import local
from turns import Turns

import tacit

EPSILON = 1000.0  # never reached here, but finite, so that every charge is priced


def experiment(args: Any) -> tacit.Experiment:
    """12 steps on (expected) batches of 50 of the 600 examples of each client."""
    size = len(local.clients(args.data)[0][1])
    train = {"rounds": args.rounds, "local_steps": size // local.BATCH, "learning_rate": local.LEARNING_RATE}
    privacy: dict[str, Any] = {"kind": "none"}
    if args.train == "dp":
        train["sampling_rate"] = local.BATCH / size
        noise = {"clip": local.CLIP, "noise_multiplier": local.NOISE_MULTIPLIER}
        privacy = {"kind": "local", "epsilon": EPSILON, **noise}
    else:
        train["batch_size"] = local.BATCH
    data = {"name": "npz", "path": args.data, "partition": "natural", "classes": 10}
    return tacit.Experiment(data=data, model={"name": args.model}, train=train, privacy=privacy)


def same_model(ours: Any, theirs: Any) -> None:
    """Refuses to compare different models."""
    if repr(ours) != repr(theirs):
        raise SystemExit("tacit.parts.models and bench/peers/local.py do not build the same model: make them equal")


def main() -> None:
    args = local.arguments()
    turns = Turns(args.rounds)

    def ready(parts: Any, past: list[dict[str, Any]]) -> None:
        same_model(parts.model, local.build(args.model))
        turns.wait()

    def observe(record: dict[str, Any]) -> None:
        turns.done(inside=record["seconds"])
        turns.wait()

    with tempfile.TemporaryDirectory() as folder:
        tacit.run(experiment(args), out=f"{folder}/run", ready=ready, observe=observe)


if __name__ == "__main__":
    main()
