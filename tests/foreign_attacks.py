"""Somebody else's attacks, for the tests of how attacks are found, kept and shown."""

from dataclasses import dataclass

from tacit.experiment import Experiment
from tacit.lab.attacks import Attack, Estimate, Finding, Line, Place, Plot


@dataclass(frozen=True)
class counting(Attack):
    """Counts in its folder how often it was performed."""

    models: int = 2

    def perform(self, experiment: Experiment, place: Place) -> Finding:
        place.tell("counting")
        file = place.folder / "times"
        times = int(file.read_text()) + 1 if file.exists() else 1
        file.write_text(str(times))
        lines = (Line("found", (0.01, 0.1, 1.0), (0.1, 0.5, 1.0)), Line("chance", (0.01, 1.0), (0.01, 1.0)))
        plot = Plot("roc", "Counting", "false", "true", lines, log=True)
        estimates = (Estimate("times", float(times), 0.0, 9.0, of="all"),)
        return Finding("foreign_attacks-counting", experiment.name, "nothing", estimates, (plot,))


def no_attack():
    return object()
