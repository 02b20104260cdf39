"""One step of an algorithm, or of a round of it, in somebody else's hands: canaries, malicious clients, eavesdropping."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

Part = TypeVar("Part")
Hook = Callable[..., Any]  # (the part's own step, what the step is given) -> what it gives instead


def wrap(part: Part, *, facts: dict[str, Any] | None = None, **hooks: Hook) -> Part:
    """The part with a hook at each of these methods (of an algorithm `train`, `release`, `collect`), and with these attributes.
    Guarantee: all else is the part's own, its price and its mechanism too, and the part itself is left as it was.

    >>> from tacit.training.optimizer import Sgd
    >>> louder = wrap(Sgd(), init=lambda own, params: own(params) | {"heard": params})
    >>> louder.init(1), Sgd().init(1), isinstance(louder, Sgd)
    ({'heard': 1}, {}, True)
    """
    kind = type(part)
    methods = {name: _hooked(getattr(kind, name), hook) for name, hook in hooks.items()}
    made = copy.copy(part)
    object.__setattr__(made, "__class__", type(kind.__name__, (kind,), {**methods, **(facts or {})}))
    return made


def _hooked(step: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    def hooked(self: Any, *given: Any, **named: Any) -> Any:
        return hook(step.__get__(self), *given, **named)

    return hooked
