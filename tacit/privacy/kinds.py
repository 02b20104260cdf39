"""The one place that picks a kind of privacy by its name."""

import importlib
from typing import Any

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.privacy import KINDS
from tacit.privacy.plan import Kind


def kind_of(experiment: Experiment) -> Kind:
    """The kind that an experiment names: a folder of this one, or "package.module:name". Raises BadInput in one sentence."""
    name = experiment.privacy.kind
    if name in KINDS:
        return importlib.import_module(f"tacit.privacy.{name}.kind").KIND
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
        made: Any = found() if callable(found) else found
        return made
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"privacy.kind = {name!r} cannot be used ({error}): name a package.module:factory.") from None
