"""Which operations treat every example of a batch apart. What is not written down here is taken to mix them.

Every value of a model's graph is one of: `rows`, a tensor whose leading dimension is the batch, or the batch times something
with the batch outermost; `const`, what is the same whatever the rows and however many; `size`, a number or a shape that holds
the size of the batch; `weight`, a trainable parameter. A rule looks at the arguments of one operation and raises `Unsupported`
unless example i of the result depends on example i of its arguments alone; `is_rows` then checks the result's shape at two
sizes of batch. A shape entry is a constant, a multiple of the batch, or what is left over, so that two sizes decide for all; and
what copies and what shares memory differs at most between one example and several, so that one of the two sizes is 1."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import EllipsisType, NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SMALL, LARGE = 1, 3  # examples in the two batches that shapes are read from
_words = str.split
# what operations along a dimension may be told by name: `axis` is another word for `dim`
NAMED = frozenset(
    _words(
        """
        input dim dim0 dim1 dims keepdim dtype descending stable largest sorted p k eps shifts start length index correction
        unbiased chunks split_size sections indices_or_sections split_size_or_sections
        """
    )
)


class Unsupported(RuntimeError):
    """Says why a path cannot take this model; the next one is tried."""


@dataclass(frozen=True, eq=False)
class Value:
    """What a node of the graph is, and its value for the two batches."""

    kind: str
    small: Any
    large: Any

    @property
    def rank(self) -> int:
        return self.small.dim()


Rule = Callable[[tuple, dict], Any]  # looks at the arguments of an operation


def inside(*arguments: Any) -> Iterator[Value]:
    """The values among arguments, however deep."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from inside(*argument)
        elif isinstance(argument, dict):
            yield from inside(*argument.values())
        elif isinstance(argument, slice):
            yield from inside(argument.start, argument.stop, argument.step)


def is_rows(small: Any, large: Any) -> bool:
    """Whether two results have the batch outermost, and no other dimension that depends on its size."""
    if isinstance(small, list | tuple):
        return len(small) == len(large) and all(map(is_rows, small, large))
    if not isinstance(small, torch.Tensor) or small.dim() == 0 or small.shape[1:] != large.shape[1:]:
        return False
    fold = len(small) // SMALL
    return fold > 0 and (len(small), len(large)) == (SMALL * fold, LARGE * fold)


def elementwise(args: tuple, kwargs: dict) -> None:
    """Rows are paired with rows of the same shape of batch; a constant has fewer dimensions, or one row for all."""
    found = list(inside(*args, kwargs))
    refuse_kinds(found, "size", "weight")
    tensors = [value for value in found if isinstance(value.small, torch.Tensor)]
    rows = [value for value in found if value.kind == "rows"]
    if not rows or any(value not in tensors for value in rows):
        raise Unsupported("it is not given tensors of examples")
    rank, batch = max(value.rank for value in tensors), len(rows[0].small)
    for value in tensors:
        fits = value.rank == rank and len(value.small) == batch
        if not (fits if value.kind == "rows" else value.rank < rank or len(value.small) == 1):
            raise Unsupported("it pairs the examples of a batch with something else")


def chosen(args: tuple, kwargs: dict) -> None:
    """`where` between two values; with a condition alone it counts."""
    if len(args) != 3:
        raise Unsupported("it picks by values")
    elementwise(args, kwargs)


def first_only(args: tuple, kwargs: dict) -> Value:
    """The first argument, which alone holds examples."""
    rows, rest = args[0] if args else None, list(inside(*args[1:], kwargs))
    if not isinstance(rows, Value) or rows.kind != "rows" or not isinstance(rows.small, torch.Tensor):
        raise Unsupported("its first argument does not hold the examples")
    refuse_kinds(rest, "rows", "weight")
    return rows


def apart(rank: int | None = None, *, least: int = 1) -> Rule:
    """Operations that never look along the leading dimension, for inputs of this rank or of at least so many dimensions."""

    def rule(args: tuple, kwargs: dict) -> None:
        rows = first_only(args, kwargs)
        refuse_kinds(list(inside(*args[1:], kwargs)), "size")
        if rows.rank < least or rank not in (None, rows.rank):
            raise Unsupported(f"it is given examples as a tensor of {rows.rank} dimensions")

    return rule


def along(position: int, name: str = "dim", default: Any = None, *, more: int = 0, new: int = 0) -> Rule:
    """Operations along stated dimensions, none of which may be the leading one. `new`: the result has one more."""

    def rule(args: tuple, kwargs: dict) -> None:
        apart()(args, kwargs)
        if not NAMED.issuperset(kwargs):
            raise Unsupported("it is told by another name along what it works")
        rank = args[0].rank + new
        given = [*args[position : position + 1 + more]] or [kwargs.get(name, default)]
        given += [kwargs[other] for other in ("dim0", "dim1") if other in kwargs]
        refuse_leading([dim for dim in given if not (more and dim is None)], rank)

    return rule


def refuse_leading(dims: Any, rank: int) -> None:
    """Raises: Unsupported unless these are dimensions after the first."""
    flat = [int(d.small) if isinstance(d, Value) and d.kind == "const" and type(d.small) is int else d for d in dims]
    while any(isinstance(dim, list | tuple) for dim in flat):
        flat = [inner for dim in flat for inner in (dim if isinstance(dim, list | tuple) else [dim])]
    if not flat or not all(type(dim) is int and -rank <= dim < rank and dim % rank for dim in flat):
        raise Unsupported("it works along the batch, or does not say along what")


def permuted(args: tuple, kwargs: dict) -> None:
    """The leading dimension stays where it is."""
    apart()(args, kwargs)
    order = _listed((args[0], kwargs["dims"]) if "dims" in kwargs else args)
    if order[0] != 0 or any(type(dim) is not int for dim in order):
        raise Unsupported("it moves the batch from its place")


def joined(new: int) -> Rule:
    """`cat` and `stack`: parts that all hold the examples, put together along a later dimension."""

    def rule(args: tuple, kwargs: dict) -> None:
        parts = list(args[0] if args else kwargs["tensors"])
        if not all(isinstance(part, Value) and part.kind == "rows" for part in parts):
            raise Unsupported("it joins examples with something else")
        if any((part.rank, len(part.small)) != (parts[0].rank, len(parts[0].small)) for part in parts):
            raise Unsupported("it joins examples of different shapes")
        refuse_leading([args[1] if len(args) > 1 else kwargs.get("dim", 0)], parts[0].rank + new)

    return rule


def indexed(args: tuple, kwargs: dict) -> None:
    """All examples, and constant places in each."""
    rows, index = first_only(args, kwargs), args[1]
    refuse_kinds(list(inside(index)), "size")
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(value.small, torch.Tensor) for value in inside(index)) or any(
        not isinstance(entry, int | slice | Value | NoneType | EllipsisType) for entry in index
    ):
        raise Unsupported("it picks by values")
    whole = index[0] == slice(None) if not isinstance(index[0], Value) else False
    rest = sum(entry is not None and entry is not Ellipsis for entry in index)
    if not whole and not (index[0] is Ellipsis and rest < rows.rank):
        raise Unsupported("it picks examples out of the batch")


def multiplied(args: tuple, kwargs: dict) -> None:
    """Products within an example (three dimensions or more on both sides), or with a constant matrix."""
    left, right = args
    if not isinstance(left, Value) or not isinstance(right, Value) or kwargs:
        raise Unsupported("it is not a product of two tensors")
    refuse_kinds([left, right], "size", "weight")
    if left.kind == right.kind == "rows":
        good = left.rank == right.rank > 2 and len(left.small) == len(right.small)
    elif left.kind == "rows":
        good = left.rank > 1 and (right.rank <= 2 or (right.rank == left.rank > 2 and len(right.small) == 1))
    else:
        good = right.rank > 2 and (left.rank == 2 or (left.rank == right.rank and len(left.small) == 1))
    if not good:
        raise Unsupported("its product runs over the batch")


def attention(args: tuple, kwargs: dict) -> None:
    """Attention within an example: three dimensions or more, the batch first."""
    elementwise((args[:3], args[3:]), kwargs)
    if len(args) < 3 or any(value.kind != "rows" or value.rank < 3 for value in args[:3]):
        raise Unsupported("its queries, keys and values are not batches of examples")


def settled(args: tuple, kwargs: dict) -> None:
    """Batch normalisation by running statistics: outside training mode, which is told last, it is a fixed scale."""
    apart(least=2)(args[:-1], kwargs)
    if args[-1]:
        raise Unsupported("it normalises over the batch")


def normalised(args: tuple, kwargs: dict) -> None:
    """Normalisation over the last dimensions, of which there are fewer than the input has."""
    apart()(args, kwargs)
    shape = [*args[1:2], kwargs.get("normalized_shape")][0]
    shape = shape.small if isinstance(shape, Value) else shape
    if len(shape if isinstance(shape, list | tuple) else (shape,)) >= args[0].rank:
        raise Unsupported("it normalises over the batch")


def padded(args: tuple, kwargs: dict) -> None:
    """Padding of later dimensions."""
    apart()(args, kwargs)
    widths = [*args[1:2], kwargs.get("pad")][0]
    if isinstance(widths, Value) or len(widths) // 2 >= args[0].rank:
        raise Unsupported("it pads the batch")


def expanded(args: tuple, kwargs: dict) -> None:
    """No new leading dimension for examples; a constant may be repeated for each of them."""
    refuse_kinds(list(inside(*args, kwargs)), "weight")
    if args[0].kind == "rows" and (kwargs or len(_listed(args)) != args[0].rank):
        raise Unsupported("it repeats the batch")


def repeated(args: tuple, kwargs: dict) -> None:
    """As `expanded`, once along the batch."""
    expanded(args, kwargs)
    if args[0].kind == "rows" and _listed(args)[0] != 1:
        raise Unsupported("it repeats the batch")


def _listed(args: tuple) -> list[Any]:
    """Sizes or dimensions after the tensor, given one by one or as one list."""
    return list(args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:])


def filled(args: tuple, kwargs: dict) -> None:
    """A new tensor of zeros or ones."""
    refuse_kinds(list(inside(*args[1:], kwargs)), "rows", "weight")


def filled_with(position: int) -> Rule:
    """A new tensor of one number, which is not the size of the batch: that stands in the shape alone."""

    def rule(args: tuple, kwargs: dict) -> None:
        filled(args, kwargs)
        refuse_kinds(list(inside(args[position:], kwargs.get("fill_value"))), "size", "rows")

    return rule


def refuse_kinds(values: list[Value], *kinds: str) -> None:
    """Raises: Unsupported where one of the values is of such a kind."""
    names = {"size": "the size of the batch", "weight": "a weight behind its layer's back", "rows": "examples"}
    for kind in kinds:
        if any(value.kind == kind for value in values):
            raise Unsupported(f"it uses {names[kind]}")


# The list of what is known to keep examples apart: functions, methods and modules, each with its rule.

linear = apart(least=2)  # a layer of constant weights on the last dimension, which is not the batch
reshaped = first_only  # any other shape with the batch outermost: examples lie one after the other before and after

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
METHODS: dict[str, Rule] = {**BY_NAME, **{f"{name}_": elementwise for name in ELEMENTWISE}}
OPERATORS = _words(
    "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ invert iadd isub imul itruediv"
)
FUNCTIONS: dict[Any, Rule] = {
    **{getattr(operator, name): elementwise for name in OPERATORS},
    operator.matmul: multiplied,
    operator.getitem: indexed,
}
for _space in (torch, F):
    FUNCTIONS |= {
        getattr(_space, name): rule for name, rule in METHODS.items() if callable(getattr(_space, name, None))
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
