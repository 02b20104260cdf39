"""The model that a run left, in the site's own folder, where `tacit predict` and `tacit.load` read it.

What the server sends is only ever the parameters: how rows are read, and which model it is, the site knows from its agreement.
"""

from pathlib import Path

import torch
from safetensors.torch import save

from tacit.data import encoder_file
from tacit.engine.history import FROZEN
from tacit.engine.wire import pack
from tacit.federation.site import layout, store
from tacit.federation.site.broadcast import read_broadcast
from tacit.federation.site.join import Joined
from tacit.train.flat import named
from tacit.types import Message


def sent(params: torch.Tensor) -> bytes:
    """The body of the server's last word."""
    return pack(Message("server", {"params": params}))


def keep(site: Path, joined: Joined, body: bytes) -> Path:
    """Writes experiment.toml, encoder.json and, last of all, model.safetensors; returns their folder.

    Guarantee: nothing but finite parameters of the agreed number is taken, and no row decides whether. What stood there before,
    a model sent earlier, is replaced. Raises: Refused for other parameters; OSError.
    """
    params = read_broadcast(body, joined.agreement.terms).tensors["params"]
    folder = store.make_folder(layout.model_folder(site, joined.agreement.run))
    store.write(folder / "experiment.toml", joined.parts.experiment.toml().encode())
    store.write(folder / encoder_file.NAME, encoder_file.text(joined.parts.dataset.reading).encode())
    store.write(folder / "model.safetensors", save(named(joined.parts.model, params), {FROZEN: joined.parts.frozen}))
    return folder
