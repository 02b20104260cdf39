"""Low-rank adapters under privacy: of the two factors of an adapter one trains, and the other keeps its start.

Source: Sun, Li, Li, Ding 2024 (FFA-LoRA, arXiv:2403.12313). An adapter adds B A to a weight. Where both factors carry noise their
product carries noise times noise, and the mean of products is not the product of means; with A fixed the adapter is linear in
what trains. So under privacy A is frozen, as it was drawn from the run's seed, unless `model.lora = "both"` is said.

Adapters are known by the names that `peft` gives their factors. Of a table's adapter it is the other factor that starts at zero.
"""

from collections.abc import Iterator

from torch import nn

from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.privacy.kinds import kind_of

FIRST = {
    "lora_A": "lora_B",
    "lora_embedding_B": "lora_embedding_A",
}  # the factor that starts at random: the one that starts at 0


def freeze_first(experiment: Experiment, model: nn.Module) -> nn.Module:
    """Freezes the first factor of every adapter whose second trains, where the experiment is private or says so.

    Raises: BadInput where `model.lora` is said for a model that has no adapters.
    """
    said = experiment.model.lora
    if said is not None and not any(_factors(model)):
        raise BadInput(f'model.lora = "{said}" is for a model with LoRA adapters, and this one has none: leave it out.')
    if said == "first-frozen" or (said is None and kind_of(experiment).plans.priced):
        for first, second in _factors(model):
            if second.requires_grad:
                first.requires_grad_(False)
    return model


def note(experiment: Experiment, model: nn.Module) -> Iterator[str]:
    """What a researcher should know who did not choose."""
    fixed = sum(second.requires_grad and not first.requires_grad for first, second in _factors(model))
    if fixed and experiment.model.lora is None and kind_of(experiment).plans.priced:
        yield (
            f"of {fixed} LoRA adapters the first factor is frozen, since noise in both would be multiplied: set model.lora ="
            ' "both" to train both, or "first-frozen" to say that this is meant'
        )


def _factors(model: nn.Module) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
    """The two factors of every adapter, that which starts at random first."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        parts = name.split(".")
        for first, second in FIRST.items():
            other = ".".join(second if part == first else part for part in parts)
            if first in parts and other in named:
                yield parameter, named[other]
