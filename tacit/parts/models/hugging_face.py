"""A Hugging Face classifier from a folder on disk, as `save_pretrained` wrote it, with few parameters that train.

Nothing is downloaded, and nothing in the folder is code: its weights are safetensors, its class is one of the installed
`transformers`. What was trained before is public by assumption: no epsilon covers it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tacit import check
from tacit.errors import BadInput


def hugging_face(
    *,
    classes: int,
    path: str,  # the folder that `save_pretrained` wrote
    tune: Literal["lora", "head", "all"] = "lora",  # what trains: adapters and the head, the head alone, or all
    rank: int = 8,  # of the adapters
    targets: list[str]
    | None = None,  # the layers that get adapters, by the ends of their names; nothing: as `peft` knows
) -> nn.Module:
    """The model in `path`, of rows of token numbers. `tune` says what trains: LoRA adapters and the head, the head alone, or all.

    `targets` are the layers that get adapters, by the ends of their names; `peft` knows those of common models. Rows are as long
    as each other, filled up with the model's padding token; a number outside the vocabulary counts as the nearest one inside.
    Raises: BadInput where `path` holds no model, or the packages are not installed.
    """
    check.at_least(1, **{"model.rank": rank})
    model = _read(Path(path), classes)
    if tune == "lora":
        model = _adapted(model, rank, targets)
    elif tune == "head":
        model.base_model.requires_grad_(False)
    return Scores(model)


class Scores(nn.Module):
    """A classifier of token numbers as a module of one argument: attention within a row, and to no padding."""

    def __init__(self, model: Any):
        super().__init__()
        self.model, config = model, model.config
        self.vocabulary, self.padding = int(config.vocab_size), config.pad_token_id
        self.causal = any(getattr(module, "is_causal", False) for module in model.modules())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the classes. The mask is made here: `transformers` would look at its values."""
        tokens = x.long().clamp(0, self.vocabulary - 1)
        length = tokens.shape[1]
        hidden = (
            (tokens == self.padding)[:, None, None, :] if self.padding is not None else tokens.new_zeros(1, 1, 1, 1) > 0
        )
        if self.causal:
            hidden = hidden | tokens.new_ones(length, length).triu(1).bool()
        mask = torch.zeros(hidden.shape, device=x.device).masked_fill(hidden, torch.finfo(torch.float32).min)
        return self.model(input_ids=tokens, attention_mask=mask).logits


def _read(path: Path, classes: int) -> Any:
    """The model of a folder, with a head for so many classes."""
    try:
        from transformers import AutoModelForSequenceClassification, utils  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadInput(
            'model.name = "hugging-face" needs the package transformers: pip install "tacit[transformers]"'
        ) from None
    if not (path / "config.json").is_file():
        raise BadInput(f"{path} holds no model: expected the folder that `model.save_pretrained(...)` wrote.")
    how: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    how |= {"num_labels": classes, "ignore_mismatched_sizes": True}  # a head for other classes begins anew
    with _quiet(utils.logging):
        model = AutoModelForSequenceClassification.from_pretrained(
            path, **how, dtype=torch.float32, attn_implementation="eager"
        )
    model.config._name_or_path = ""  # where it lies is no part of what it is
    return model


def _adapted(model: Any, rank: int, targets: list[str] | None) -> Any:
    """The model with LoRA adapters; they and the head train."""
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BadInput('model.tune = "lora" needs the package peft: pip install "tacit[transformers]"') from None
    config = peft.LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPT-2's layers are transposed: peft sees it, sets what is needed, and says so
        try:
            return peft.get_peft_model(model, config)
        except ValueError:
            if targets is not None:
                raise
            raise BadInput(
                f"peft does not say which layers of a {model.config.model_type} get adapters: name them by the ends of their"
                ' names, as in model.targets = ["query", "value"].'
            ) from None


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without a bar, and without the news that a head begins anew: that is what was asked for."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
