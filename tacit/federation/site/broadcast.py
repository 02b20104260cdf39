"""What the server broadcasts for a round, checked by the site before anything is bound, charged or trained.

Nothing here depends on the rows: a broadcast is taken or refused whatever they are, so a refusal tells the server nothing of
them.
"""

import torch

from tacit.algorithms import rule_of
from tacit.engine.wire import all_finite, unpack
from tacit.errors import BadInput, Refused
from tacit.federation.site.agreement import Terms
from tacit.federation.site.join import Joined
from tacit.types import Message


def read_broadcast(body: bytes, terms: Terms) -> Message:
    """The message of a round's question.

    Guarantee: its `params` are one float32 vector of the agreed length, all of it finite.

    Raises: Refused for bytes that are no message, and for parameters that are missing, of another shape or type, or not finite.

    >>> from tacit.engine.wire import pack
    >>> question = pack(Message("server", {"params": torch.zeros(3)}))
    >>> read_broadcast(question, Terms("", 1.0, rounds=3, parameters=3)).tensors["params"].shape
    torch.Size([3])
    """
    try:
        received = unpack(body)
    except BadInput as error:
        raise Refused(f"The server's parameters cannot be read: {error}") from None
    params = received.tensors.get("params")
    if params is None or params.shape != (terms.parameters,) or params.dtype != torch.float32:
        sent = "none" if params is None else f"{list(params.shape)} of {params.dtype}"
        raise Refused(f"The server sent other parameters ({sent}) than the {terms.parameters} that were agreed.")
    if not all_finite(params):
        raise Refused("The server sent parameters that are not finite.")
    return received


def refuse_odd_word(joined: Joined, received: Message) -> None:
    """Refuses what the run's aggregation rule cannot have told its clients beside the parameters, such as a basis of a wrong size.

    Raises: Refused, where the rule's own `refuse` raises BadInput. An algorithm without a rule has nothing to tell.
    """
    rule = rule_of(joined.parts.algorithm)
    try:
        if rule is not None:
            rule.refuse(received, size=joined.agreement.terms.parameters)
    except BadInput as error:
        raise Refused(f"The server's word beside the parameters cannot be used: {error}") from None
