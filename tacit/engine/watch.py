"""What a round tells its reader beside the result: seconds by stage, traffic, and signal. Nothing here feeds back into a run."""

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tacit.types import Client, Message

Item = TypeVar("Item")
STAGES: tuple[str, ...] = ("admit", "train", "server", "evaluate", "write")


class Watch:
    """Seconds by stage: `with watch("train"): ...`.
    The write stage of a round ends after its record is written, so a record carries that of the round before."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - began

    def each(self, stage: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items; waiting for each counts for a stage, what is done with it does not."""
        while True:
            with self(stage):
                item = next(items, None)
            if item is None:
                return
            yield item

    def read(self) -> dict[str, float]:
        """The seconds since the last reading, as `seconds_<stage>`; all start from zero again."""
        seconds, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        return {f"seconds_{stage}": round(seconds[stage], 6) for stage in STAGES}


@dataclass
class Traffic:
    """What one round moved, what its clients told the researcher, and the signal in the updates that carry noise."""

    uplink: int = 0
    downlink: int = 0
    info: list[dict[str, float]] = field(default_factory=list)
    norms: list[tuple[torch.Tensor, float]] = field(default_factory=list)  # of updates, and of their noise as expected

    def take(self, message: Message) -> None:
        """Looks at an update that states its noise; one without noise is not looked at: its norm would be private."""
        update, noise_std = message.tensors.get("update"), message.facts.get("noise_std")
        if update is not None and isinstance(noise_std, float) and noise_std > 0:
            self.norms.append((update.norm(), noise_std * math.sqrt(update.numel())))

    def mean(self, key: str) -> float | None:
        """The mean of what clients told under a key; None where nobody did."""
        values = [info[key] for info in self.info if key in info]
        return sum(values) / len(values) if values else None

    def signal(self, info: dict[str, Any], size: int) -> dict[str, float]:
        """The signal-to-noise ratio of the round's updates: the median client, the lowest and the highest.
        Where the server adds the noise, that of the noised sum, which is what it releases."""
        if "noised_norm" in info and info.get("noise_std"):
            return {"signal_to_noise": signal_to_noise(float(info["noised_norm"]), info["noise_std"] * math.sqrt(size))}
        if not self.norms:
            return {}
        released = torch.stack([norm for norm, _ in self.norms]).tolist()  # one look at the device for all clients
        ratios = [signal_to_noise(norm, noise) for norm, (_, noise) in zip(released, self.norms, strict=True)]
        ends = {"signal_to_noise_low": min(ratios), "signal_to_noise_high": max(ratios)}
        return {"signal_to_noise": statistics.median(ratios)} | ends


def record_of(
    cohort: list[Client], traffic: Traffic, spent: dict[str, Any], moved: torch.Tensor, info: dict[str, Any]
) -> dict[str, Any]:
    """What a round tells its reader beside the result: who took part, what it cost, how far the model moved, what was sent."""
    asked, answered = (
        info.pop("asked_bytes", 0),
        info.pop("answered_bytes", 0),
    )  # reports go on to whoever opens the sum
    diverged = [client.id for client, info in zip(cohort, traffic.info, strict=False) if info.get("diverged")]
    return {
        "train_loss": traffic.mean("loss"),
        "clipped": traffic.mean("clipped"),
        "cohort": len(cohort),
        "answered": len(traffic.info),
        **spent,
        "update_norm": float(moved.norm()),
        **traffic.signal(info, moved.numel()),
        "uplink_bytes": traffic.uplink + answered,
        "downlink_bytes": traffic.downlink + asked,
        **{name: value.item() if isinstance(value, torch.Tensor) else value for name, value in info.items()},
        **({"diverged": diverged} if diverged else {}),  # for the researcher: nobody may see it in a message
    }


def signal_to_noise(released: float, noise: float) -> float:
    """|signal| / |noise|, estimated from the norm of a released update and the expected norm of its noise.
    |update|^2 is |signal|^2 + |noise|^2 on average. Post-processing of what was released, so it costs no privacy.

    >>> signal_to_noise(5.0, 3.0), signal_to_noise(2.9, 3.0)
    (1.3333333333333333, 0.0)
    """
    return math.sqrt(max(0.0, released**2 - noise**2)) / noise
