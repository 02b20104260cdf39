"""The model that a run left, in the site's own folder, where `tacit predict` and `tacit.load` read it.

What the server sends is only ever the parameters: how rows are read, and which model it is, the site knows from its agreement.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save

from tacit.data import encoder
from tacit.deploy.site import layout, replies
from tacit.deploy.site.join import Joined
from tacit.deploy.site.queries import read_broadcast
from tacit.engine.history import FROZEN
from tacit.training.flat import named
from tacit.types import Message
from tacit.wire import pack


def sent(params: torch.Tensor) -> bytes:
    """The body of the server's last word."""
    return pack(Message("server", {"params": params}))


def keep(site: Path, joined: Joined, body: bytes) -> Path:
    """Writes experiment.toml, encoder.json, run.json and, last of all, model.safetensors; returns their folder.

    Guarantee: nothing but finite parameters of the agreed number is taken, and no row decides whether. What stood there before,
    a model sent earlier, is replaced. Raises: Refused for other parameters; OSError.
    """
    params = read_broadcast(body, joined.agreement.terms).tensors["params"]
    folder = replies.make_folder(layout.model_folder(site, joined.agreement.run))
    replies.write(folder / "experiment.toml", joined.parts.experiment.toml().encode())
    replies.write(folder / encoder.NAME, encoder.text(joined.parts.dataset.reading).encode())
    replies.write(folder / "run.json", json.dumps({"run": joined.agreement.run}).encode())
    replies.write(folder / "model.safetensors", save(named(joined.parts.model, params), {FROZEN: joined.parts.frozen}))
    return folder
