"""The list of what is known to keep examples apart: functions, methods and modules, each with its rule from `rowwise.py`.

Modules are named by their exact type, whose forward pass is torch's own. Everything that is not on the list, and whatever a model
builds from it in an unknown way, is left to `vmap` of single examples, which is slower and right by construction.
"""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tacit.train.rowwise import (
    Rule,
    along,
    apart,
    attention,
    chosen,
    elementwise,
    expanded,
    filled,
    filled_with,
    indexed,
    joined,
    linear,
    multiplied,
    normalised,
    padded,
    permuted,
    repeated,
    reshaped,
    settled,
)


def _words(text: str) -> list[str]:
    return text.split()


ELEMENTWISE = _words(
    """
    abs add addcdiv addcmul alpha_dropout atan bool bitwise_and bitwise_not bitwise_or ceil celu clamp clip clone contiguous
    cos cosh detach div dropout dropout1d dropout2d dropout3d elu eq erf erfc exp expand_as expm1 float floor floor_divide fmod
    feature_alpha_dropout ge gelu gt hardshrink hardsigmoid hardswish hardtanh int isfinite isinf isnan le leaky_relu lerp log log10
    log1p log2 logaddexp logical_and logical_not logical_or logsigmoid long lt masked_fill maximum minimum mish mul multiply
    nan_to_num ne neg negative ones_like pow reciprocal relu relu6 remainder rsqrt rsub selu sigmoid sign silu sin sinh softplus
    softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold to true_divide trunc type_as xlogy zeros_like
    full_like
    """
)
ALONG: dict[str, Rule] = {
    **dict.fromkeys(
        _words("all amax amin any argmax argmin cumprod cumsum logsumexp max mean min prod std sum var"), along(1)
    ),
    **dict.fromkeys(_words("softmax log_softmax softmin select narrow squeeze index_select"), along(1)),
    **dict.fromkeys(_words("sort argsort glu"), along(1, default=-1)),
    **dict.fromkeys(_words("chunk split tensor_split"), along(2, default=0)),
    **dict.fromkeys(_words("transpose swapaxes swapdims"), along(1, more=1)),
    "unbind": along(1, default=0),
    "unsqueeze": along(1, new=1),
    "topk": along(2, default=-1),
    "norm": along(2),
    "normalize": along(2, default=1),
    "flip": along(1, "dims", more=8),
    "roll": along(2, "dims"),
    "permute": permuted,
    "cat": joined(0),
    "concat": joined(0),
    "stack": joined(1),
}
SHAPES: dict[str, Rule] = {
    **dict.fromkeys(_words("flatten reshape unflatten view"), reshaped),
    **dict.fromkeys(_words("zeros ones new_zeros new_ones"), filled),
    "full": filled_with(1),
    "new_full": filled_with(2),
    "where": chosen,
    "expand": expanded,
    "repeat": repeated,
    "pad": padded,
    "interpolate": apart(least=3),
    "matmul": multiplied,
    "bmm": multiplied,
    "linear": linear,
    "layer_norm": normalised,
    "rms_norm": normalised,
    "group_norm": apart(least=2),
    "scaled_dot_product_attention": attention,
}
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool")
POOLED: dict[str, Rule] = {f"{pool}{n}d": apart(n + 2) for pool in POOLS for n in (1, 2, 3)}
BY_NAME: dict[str, Rule] = {**dict.fromkeys(ELEMENTWISE, elementwise), **ALONG, **SHAPES, **POOLED}
OPERATORS: dict[Any, Rule] = {
    **{
        getattr(operator, name): elementwise
        for name in _words("add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ invert")
    },
    **{getattr(operator, name): elementwise for name in _words("iadd isub imul itruediv")},
    operator.matmul: multiplied,
    operator.getitem: indexed,
}
FUNCTIONS: dict[Any, Rule] = {
    **{
        getattr(space, name): rule
        for space in (torch, F)
        for name, rule in BY_NAME.items()
        if callable(getattr(space, name, None))
    },
    **OPERATORS,
}
IN_PLACE: dict[str, Rule] = {f"{name}_": elementwise for name in ELEMENTWISE}
METHODS: dict[str, Rule] = {**BY_NAME, **IN_PLACE}
FUNCTIONS |= {
    getattr(space, name): rule
    for space in (torch, F)
    for name, rule in IN_PLACE.items()
    if callable(getattr(space, name, None))
}

ACTIVATIONS = _words(
    """
    AlphaDropout CELU Dropout Dropout1d Dropout2d Dropout3d ELU FeatureAlphaDropout GELU Hardshrink Hardsigmoid Hardswish Hardtanh
    Identity LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Threshold
    """
)
PADS = [
    f"{pad}{n}d"
    for pad in ("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad")
    for n in (1, 2, 3)
]
POOL_MODULES = {"MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool"}
MODULES: dict[type[nn.Module], Rule] = {
    **{getattr(nn, name): elementwise for name in ACTIVATIONS},
    **{getattr(nn, f"{name}{n}d"): apart(n + 2) for name in (*POOL_MODULES, "Conv", "InstanceNorm") for n in (1, 2, 3)},
    **{getattr(nn, name): apart(int(name[-2]) + 2) for name in PADS},
    **{getattr(nn, f"BatchNorm{n}d"): settled for n in (1, 2, 3)},
    nn.Linear: linear,
    nn.Embedding: apart(),
    nn.GroupNorm: apart(least=2),
    nn.LayerNorm: normalised,
    nn.RMSNorm: normalised,
    nn.Flatten: reshaped,
    nn.Unflatten: reshaped,
    nn.Softmax: along(1),
    nn.LogSoftmax: along(1),
    nn.GLU: along(1),
}
SHAPED = {
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), "normalized_shape"),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.GLU), "dim"),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), "training"),
}  # what of the module its rule looks at, as if it had been an argument
