"""What `tacit.run` is passed from Python, in the place of what an experiment names: data, a model, a rule.

A part travels with its table of the experiment; the run's file has its name and its digest. So whatever is keyed, compared or
written down follows from the part that runs, and a file alone can never run without it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tacit import plugin
from tacit.build.held import held
from tacit.data.given import Dataset
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.section import OpenSection
from tacit.rules import Rule

Model = nn.Module | Callable[..., nn.Module]


def with_passed(
    experiment: Experiment, *, data: Dataset | None = None, model: Model | None = None, rule: Rule | None = None
) -> Experiment:
    """The experiment with these parts in the place of those that it names. Raises BadInput for what is no such part.

    Each is copied: what becomes of the program's own afterwards changes nothing in the run.
    """
    tables: dict[str, OpenSection] = {}
    if data is not None:
        tables["data"] = _data(experiment, data)
    if model is not None:
        tables["model"] = _model(experiment, model)
    if rule is not None:
        tables["aggregate"] = _rule(experiment, rule)
    if tables and experiment.run.engine != "tacit":
        raise BadInput(
            f'run.engine = "{experiment.run.engine}" builds the clients from the experiment\'s file, which does not hold what is'
            " passed from Python: leave it out."
        )
    said = {name: getattr(experiment, name) for name in Experiment.model_fields}
    return Experiment(**said | tables) if tables else experiment


def _data(experiment: Experiment, data: Any) -> OpenSection:
    if not isinstance(data, Dataset):
        way = ".from_pandas(df, label=...)" if hasattr(data, "iloc") else "(x, y, classes=..., test=...)"
        raise BadInput(f"Expected data to be a tacit.Dataset, got a {type(data).__name__}: pass tacit.Dataset{way}.")
    section = experiment.data
    _refuse_options(section, "the data is")
    named, said = data.rows.client_names is not None, "partition" in section.model_fields_set
    if named and said and section.partition != "natural":
        raise BadInput(
            f'The data names its clients, and data.partition = "{section.partition}" would deal their rows out again: leave it'
            " out, or leave the clients out of the Dataset."
        )
    if not named and section.partition == "natural":
        raise BadInput(
            'data.partition = "natural" needs clients: name them in the Dataset (clients=..., or a list of (x, y)), or choose'
            " another partition."
        )
    section = section.model_copy(update={"partition": "natural"}) if named else section
    return section.carrying(data, passed=data.passed)


def _model(experiment: Experiment, model: Any) -> OpenSection:
    """The table with a factory; the model's digest is written down once it is made (build/parts.py)."""
    if isinstance(model, nn.Module):
        _refuse_options(experiment.model, "a model that is made already is")
        if experiment.model.seed is not None:
            raise BadInput("A model that is made already has its weights: leave out model.seed, or pass a function.")
        return experiment.model.carrying(Copies(_copied(model, "model")), passed="")
    if not callable(model):
        raise BadInput(
            f"Expected model to be a torch module or a function that makes one, got {model!r:.60}: a name goes into model.name."
        )
    return experiment.model.carrying(model, passed="")


def _rule(experiment: Experiment, rule: Any) -> OpenSection:
    if isinstance(rule, type) and issubclass(rule, Rule):
        raise BadInput(f"rule={rule.__name__} is the class: pass a rule, as in rule={rule.__name__}().")
    if not isinstance(rule, Rule):
        raise BadInput(f"Expected rule to be a tacit.Rule, got {rule!r:.60}: a name goes into aggregate.rule.")
    _refuse_options(experiment.aggregate, "the rule is")
    own = _copied(rule, "rule")
    return experiment.aggregate.carrying(own, passed=f"{type(rule).__name__}, {held(own)}")


@dataclass(frozen=True)
class Copies:
    """The factory of a model that is made already: each call copies it, weights included, ready to be trained."""

    model: nn.Module = field(repr=False)

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.model).train()


def _copied(part: Any, argument: str) -> Any:
    with plugin.guarded(f"{argument}= cannot be copied"):
        return copy.deepcopy(part)


def _refuse_options(section: OpenSection, what: str) -> None:
    for key in section.options():
        named = getattr(section, section.names_part)
        raise BadInput(
            f"{section.table()}.{key} is an option of {named!r}, and {what} passed from Python: leave it out."
        )
