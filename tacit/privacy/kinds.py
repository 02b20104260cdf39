"""The one place that picks a kind of privacy by its name."""

import importlib

from tacit import plugin
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.privacy import KINDS
from tacit.privacy.plan import Kind, Plan


def kind_of(experiment: Experiment) -> Kind:
    """The kind that an experiment names: a folder of this room, or what the factory at "package.module:name" makes.

    Assumes: somebody else's code does what it says; it runs in this process.

    Raises: BadInput in one sentence for what cannot be imported or made, and for what is no kind.
    """
    name = experiment.privacy.kind
    if name in KINDS:
        room = "banded" if name == "central" and experiment.privacy.sampler == "cyclic" else name
        return importlib.import_module(f"tacit.privacy.{room}.kind").KIND
    kind = plugin.make(plugin.find("tacit.privacy", name, key="privacy.kind"), {}, table="privacy")
    plans = getattr(kind, "plans", None)
    if not (isinstance(plans, type) and issubclass(plans, Plan)):
        raise BadInput(
            f"privacy.kind = {name!r} is no kind of privacy: it needs `plans`, the class of the plans it makes."
        )
    for method in ("plan", "refuse_at_site"):
        if not callable(getattr(kind, method, None)):
            raise BadInput(f"privacy.kind = {name!r} is no kind of privacy: it has no `{method}`.")
    return kind
