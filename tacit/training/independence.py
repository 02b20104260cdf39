"""A model's forward pass as a graph (torch.fx) in which every operation is known to keep the examples of a batch apart. The
graph is read from a copy of the model and is what runs afterwards, not the model's own code: whatever that code would do at
another size of batch, in a later call, or with what it remembers, cannot happen. Every value of the graph is one of: `rows`, a
tensor whose leading dimension is the batch, or the batch times something with the batch outermost; `const`, what is the same
whatever the rows and however many; `size`, a number or a shape that holds the size of the batch; `weight`, a trainable
parameter. A rule looks at the arguments of one operation and raises `Unsupported` unless example i of the result depends on
example i of its arguments alone; an operation without a rule is taken to mix them. `is_rows` then checks the result's shape at
two sizes of batch. A shape entry is a constant, a multiple of the batch, or what is left over, so that two sizes decide for
all; and what copies and what shares memory differs at most between one example and several, so that one of the two sizes is
1."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, EllipsisType, NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.node import map_aggregate

from tacit.training.flat import hooked

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


def refuse(unfit: object, why: str) -> None:
    if unfit:
        raise Unsupported(why)


def reason_of(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


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


def inside(*arguments: Any) -> list[Value]:
    """The values of the graph among the arguments, however deep in lists, tables and slices."""
    found = list[Value]()
    map_aggregate(arguments, lambda one: found.append(one) if isinstance(one, Value) else None)
    return found


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
    found = inside(*args, kwargs)
    refuse_kinds(found, "size", "weight")
    tensors = [value for value in found if isinstance(value.small, torch.Tensor)]
    rows = [value for value in found if value.kind == "rows"]
    refuse(not rows or any(value not in tensors for value in rows), "it is not given tensors of examples")
    rank, batch = max(value.rank for value in tensors), len(rows[0].small)
    for value in tensors:
        fits = value.rank == rank and len(value.small) == batch
        if not (fits if value.kind == "rows" else value.rank < rank or len(value.small) == 1):
            raise Unsupported("it pairs the examples of a batch with something else")


def chosen(args: tuple, kwargs: dict) -> None:
    if len(args) != 3:  # `where` with a condition alone counts
        raise Unsupported("it picks by values")
    elementwise(args, kwargs)


def first_only(args: tuple, kwargs: dict) -> Value:
    """The first argument, which alone holds examples."""
    rows, rest = args[0] if args else None, inside(*args[1:], kwargs)
    if not isinstance(rows, Value) or rows.kind != "rows" or not isinstance(rows.small, torch.Tensor):
        raise Unsupported("its first argument does not hold the examples")
    refuse_kinds(rest, "rows", "weight")
    return rows


def apart(args: tuple, kwargs: dict, *, rank: int | None = None, least: int = 1) -> None:
    """Operations that never look along the leading dimension, for inputs of this rank or of at least so many dimensions."""
    rows = first_only(args, kwargs)
    refuse_kinds(inside(*args[1:], kwargs), "size")
    unfit = rows.rank < least or rank not in (None, rows.rank)
    refuse(unfit, f"it is given examples as a tensor of {rows.rank} dimensions")


def along(
    args: tuple, kwargs: dict, *, at: int = 1, name: str = "dim", default: Any = None, more: int = 0, new: int = 0
) -> None:
    """Operations along stated dimensions, none of which may be the leading one. `new`: the result has one more."""
    apart(args, kwargs)
    refuse(not NAMED.issuperset(kwargs), "it is told by another name along what it works")
    given = [*args[at : at + 1 + more]] or [kwargs.get(name, default)]
    given += [kwargs[other] for other in ("dim0", "dim1") if other in kwargs]
    refuse_leading([dim for dim in given if not (more and dim is None)], args[0].rank + new)


def refuse_leading(dims: Any, rank: int) -> None:
    flat = [int(d.small) if isinstance(d, Value) and d.kind == "const" and type(d.small) is int else d for d in dims]
    while any(isinstance(dim, list | tuple) for dim in flat):
        flat = [inner for dim in flat for inner in (dim if isinstance(dim, list | tuple) else [dim])]
    if not flat or not all(type(dim) is int and -rank <= dim < rank and dim % rank for dim in flat):
        raise Unsupported("it works along the batch, or does not say along what")


def permuted(args: tuple, kwargs: dict) -> None:
    apart(args, kwargs)
    order = _listed((args[0], kwargs["dims"]) if "dims" in kwargs else args)
    refuse(order[0] != 0 or any(type(dim) is not int for dim in order), "it moves the batch from its place")


def joined(args: tuple, kwargs: dict, *, new: int = 0) -> None:
    """`cat` and `stack`: parts that all hold the examples, put together along a later dimension."""
    parts = list(args[0] if args else kwargs["tensors"])
    foreign = not all(isinstance(part, Value) and part.kind == "rows" for part in parts)
    refuse(foreign, "it joins examples with something else")
    shapes = {(part.rank, len(part.small)) for part in parts}
    refuse(len(shapes) > 1, "it joins examples of different shapes")
    refuse_leading([args[1] if len(args) > 1 else kwargs.get("dim", 0)], parts[0].rank + new)


def indexed(args: tuple, kwargs: dict) -> None:
    rows, index = first_only(args, kwargs), args[1]
    refuse_kinds(inside(index), "size")
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(value.small, torch.Tensor) for value in inside(index)) or any(
        not isinstance(entry, int | slice | Value | NoneType | EllipsisType) for entry in index
    ):
        raise Unsupported("it picks by values")
    whole = not isinstance(index[0], Value) and index[0] == slice(None)
    rest = sum(entry is not None and entry is not Ellipsis for entry in index)
    refuse(not whole and not (index[0] is Ellipsis and rest < rows.rank), "it picks examples out of the batch")


def multiplied(args: tuple, kwargs: dict) -> None:
    """Products within an example (three dimensions or more on both sides), or with a constant matrix."""
    left, right = args
    refuse(not isinstance(left, Value) or not isinstance(right, Value) or kwargs, "it is not a product of two tensors")
    refuse_kinds([left, right], "size", "weight")
    if left.kind == right.kind == "rows":
        good = left.rank == right.rank > 2 and len(left.small) == len(right.small)
    elif left.kind == "rows":
        good = left.rank > 1 and (right.rank <= 2 or (right.rank == left.rank > 2 and len(right.small) == 1))
    else:
        good = right.rank > 2 and (left.rank == 2 or (left.rank == right.rank and len(left.small) == 1))
    refuse(not good, "its product runs over the batch")


def attention(args: tuple, kwargs: dict) -> None:
    elementwise((args[:3], args[3:]), kwargs)
    if len(args) < 3 or any(value.kind != "rows" or value.rank < 3 for value in args[:3]):
        raise Unsupported("its queries, keys and values are not batches of examples")


def settled(args: tuple, kwargs: dict) -> None:
    """Batch normalisation by running statistics: outside training mode, which is told last, it is a fixed scale."""
    apart(args[:-1], kwargs, least=2)
    refuse(args[-1], "it normalises over the batch")


def normalised(args: tuple, kwargs: dict) -> None:
    apart(args, kwargs)
    shape = [*args[1:2], kwargs.get("normalized_shape")][0]
    shape = shape.small if isinstance(shape, Value) else shape
    refuse(len(shape if isinstance(shape, list | tuple) else (shape,)) >= args[0].rank, "it normalises over the batch")


def padded(args: tuple, kwargs: dict) -> None:
    apart(args, kwargs)
    widths = [*args[1:2], kwargs.get("pad")][0]
    refuse(isinstance(widths, Value) or len(widths) // 2 >= args[0].rank, "it pads the batch")


def expanded(args: tuple, kwargs: dict) -> None:
    """No new leading dimension for examples; a constant may be repeated for each of them."""
    refuse_kinds(inside(*args, kwargs), "weight")
    refuse(args[0].kind == "rows" and (kwargs or len(_listed(args)) != args[0].rank), "it repeats the batch")


def repeated(args: tuple, kwargs: dict) -> None:
    expanded(args, kwargs)
    refuse(args[0].kind == "rows" and _listed(args)[0] != 1, "it repeats the batch")


def _listed(args: tuple) -> list[Any]:  # sizes or dimensions after the tensor, given one by one or as one list
    return list(args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:])


def filled(args: tuple, kwargs: dict, *, at: int | None = None) -> None:
    """A new tensor of one number, given at a position or not at all, which is not the size of the batch: only its shape may be."""
    refuse_kinds(inside(*args[1:], kwargs), "rows", "weight")
    if at is not None:
        refuse_kinds(inside(args[at:], kwargs.get("fill_value")), "size", "rows")


def refuse_kinds(values: Sequence[Value], *kinds: str) -> None:
    names = {"size": "the size of the batch", "weight": "a weight behind its layer's back", "rows": "examples"}
    for kind in kinds:
        refuse(any(value.kind == kind for value in values), f"it uses {names[kind]}")


# The list of what is known to keep examples apart: functions, methods and modules, each with its rule.

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
        _words("all amax amin any argmax argmin cumprod cumsum logsumexp max mean min prod std sum var"), along
    ),
    **dict.fromkeys(_words("softmax log_softmax softmin select narrow squeeze index_select"), along),
    **dict.fromkeys(_words("sort argsort glu"), partial(along, default=-1)),
    **dict.fromkeys(_words("chunk split tensor_split"), partial(along, at=2, default=0)),
    **dict.fromkeys(_words("transpose swapaxes swapdims"), partial(along, more=1)),
    "unbind": partial(along, default=0),
    "unsqueeze": partial(along, new=1),
    "topk": partial(along, at=2, default=-1),
    "norm": partial(along, at=2),
    "normalize": partial(along, at=2, default=1),
    "flip": partial(along, name="dims", more=8),
    "roll": partial(along, at=2, name="dims"),
    "permute": permuted,
    **dict.fromkeys(("cat", "concat"), joined),
    "stack": partial(joined, new=1),
}
SHAPES: dict[str, Rule] = {
    # any other shape with the batch outermost: examples lie one after the other before and after
    **dict.fromkeys(_words("flatten reshape unflatten view"), first_only),
    **dict.fromkeys(_words("zeros ones new_zeros new_ones"), filled),
    "full": partial(filled, at=1),
    "new_full": partial(filled, at=2),
    "where": chosen,
    "expand": expanded,
    "repeat": repeated,
    "pad": padded,
    "interpolate": partial(apart, least=3),
    **dict.fromkeys(("matmul", "bmm"), multiplied),
    "linear": partial(apart, least=2),  # of constant weights on the last dimension, which is not the batch
    **dict.fromkeys(("layer_norm", "rms_norm"), normalised),
    "group_norm": partial(apart, least=2),
    "scaled_dot_product_attention": attention,
}
POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool")
METHODS: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **ALONG,
    **SHAPES,
    **{f"{pool}{n}d": partial(apart, rank=n + 2) for pool in POOLS for n in (1, 2, 3)},
    **{f"{name}_": elementwise for name in ELEMENTWISE},
}
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
PADS = ("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad")
OVER_PLACES = ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool", "Conv", "InstanceNorm")
MODULES: dict[type[nn.Module], Rule] = {
    **{getattr(nn, name): elementwise for name in ACTIVATIONS},
    **{getattr(nn, f"{name}{n}d"): partial(apart, rank=n + 2) for name in (*PADS, *OVER_PLACES) for n in (1, 2, 3)},
    **{getattr(nn, f"BatchNorm{n}d"): settled for n in (1, 2, 3)},
    nn.Linear: partial(apart, least=2),
    nn.Embedding: apart,
    nn.GroupNorm: partial(apart, least=2),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), normalised),
    **dict.fromkeys((nn.Flatten, nn.Unflatten), first_only),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.GLU), along),
}
SHAPED = {
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), "normalized_shape"),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.GLU), "dim"),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), "training"),
}  # what of the module its rule looks at, as if it had been an argument


# The graph: traced, judged node by node, and what runs afterwards.

FACTS = ("dtype", "device", "ndim", "is_cuda", "itemsize")  # of a tensor, the same for every batch
PLAIN = (torch.Tensor, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


Record = Callable[
    [int, torch.Tensor, torch.Tensor], None
]  # a layer's number, what it read and what it answered, at every use
Forward = Callable[[torch.Tensor, Record], torch.Tensor]


class Root(nn.Module):
    """Calls the model with one argument, so that its other arguments keep their defaults."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.contiguous())  # how rows lie in memory would decide which operations copy and which do not


class Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # so that writing into a buffer is seen

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in MODULES


def analysed(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, fx.Graph]:
    """A model's graph, whose operations all keep examples apart, and the module that it runs in. Raises: Unsupported."""
    for name, module in model.named_modules():
        refuse(hooked(module), f"{name or type(module).__name__!r} carries a hook or a forward pass of its own")
    refuse(torch.nn.modules.module._has_any_global_hook(), "torch's modules carry a hook")
    root = Root(model)
    try:
        graph = Tracer().trace(root)
        Analysis(root).run(graph, x)
    except Unsupported:
        raise
    except Exception as error:  # a model's own code may raise anything when it is given symbols
        raise Unsupported(f"its forward pass cannot be traced ({reason_of(error)})") from error
    return root, graph


def places_of(names: Iterable[str]) -> list[str]:
    """Where layers of a model are in the module that its graph runs in."""
    return [f"model.{name}" if name else "model" for name in names]


def recorded(root: nn.Module, graph: fx.Graph, places: Sequence[str]) -> Forward:
    """The graph as a function of the rows and of what records every use of the layers at these places, by their number."""
    first = next(node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(first):
        record = graph.placeholder("record")
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target in places:
            with graph.inserting_after(node):
                graph.call_method("__call__", (record, places.index(str(node.target)), node.args[0], node))
    return fx.GraphModule(root, graph).forward


class Analysis:
    """Walks through a graph with two batches and a kind for every value."""

    def __init__(self, root: nn.Module):
        self.root, self.values = root, dict[fx.Node, Value]()

    def run(self, graph: fx.Graph, x: torch.Tensor) -> None:
        """Raises: Unsupported unless the output has one row for every example, which depends on that example alone."""
        with torch.no_grad():
            for node in graph.nodes:
                if node.op == "placeholder":
                    self.values[node] = Value("rows", x[:SMALL].clone(), x[SMALL : SMALL + LARGE].clone())
                elif node.op == "output":
                    self._check_output(node.args[0])
                else:
                    self.values[node] = self._judged(node)

    def _judged(self, node: fx.Node) -> Value:
        value_of: Any = self.values.__getitem__
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        try:
            value = self._value(node, args, kwargs)
            if value.kind == "const" and not _plain(value.small):
                raise Unsupported(
                    "it gives something else than tensors and numbers, which could be written into unseen"
                )
            return value
        except Unsupported as error:
            name = str(getattr(node.target, "__name__", node.target)).removeprefix("model.")
            raise Unsupported(f"{name}: {error}") from None

    def _value(self, node: fx.Node, args: tuple, kwargs: dict) -> Value:
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(self.root)
            trains = isinstance(tensor, torch.Tensor) and tensor.requires_grad
            return Value("weight" if trains else "const", tensor, tensor)
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            if len(args) != 1 or kwargs or type(module) not in MODULES:
                raise Unsupported("it is not called with one batch of examples")
            if any(p.requires_grad for p in module.parameters()) and "rows" not in {v.kind for v in inside(args)}:
                raise Unsupported("a layer that trains is not given examples")
            extra = (getattr(module, SHAPED[type(module)]),) if type(module) in SHAPED else ()
            return self._called(MODULES[type(module)], module, args, kwargs, extra)
        if node.target is getattr:
            return _fact(*args)
        if node.op == "call_method":
            if node.target in ("size", "dim") and args[0].kind != "const":
                small, large = _at_both(_method(str(node.target)), args, kwargs)
                return Value("const" if small == large else "size", small, large)
            return self._called(METHODS.get(str(node.target)), _method(str(node.target)), args, kwargs)
        function: Any = node.target
        of_torch = str(function.__module__).partition(".")[0] in ("torch", "_operator")
        if not of_torch and not isinstance(
            function, BuiltinFunctionType
        ):  # what a model's author has wrapped runs with the graph
            raise Unsupported("it is code that may remember how often it was called")
        if function in (operator.mul, operator.getitem) and args[0].__class__ is Value:
            value = _of_sizes(function, *args)
            if value:
                return value
        return self._called(FUNCTIONS.get(function), function, args, kwargs)

    def _called(self, rule: Rule | None, function: Any, args: tuple, kwargs: dict, extra: tuple = ()) -> Value:
        """The result of an operation that its rule allows; anything may be done with constants except to write into them."""
        found = inside(*args, kwargs)
        const = {value.kind for value in found} <= {"const"}
        if not const:
            if rule is None:
                raise Unsupported("it is not known to keep examples apart")
            rule((*args, *extra), kwargs)
        before = [[(t._version, _place(t)) for t in _tensors(value)] for value in found]
        small, large = _at_both(function, args, kwargs)
        for value, then in zip(found, before, strict=True):
            if [_place(t) for t in _tensors(value)] != [place for _, place in then]:
                raise Unsupported("it gives a tensor another place in memory")
            if [t._version for t in _tensors(value)] != [version for version, _ in then]:
                self._refuse_write(value)
        if const:
            return Value("const", small, large)
        refuse(not is_rows(small, large), "its result has not the batch outermost")
        return Value("rows", small, large)

    def _refuse_write(self, target: Value) -> None:
        """Raises: Unsupported unless what is written are rows that lie apart, in memory that they share with other rows at
        most. What shares it must be the same for one example as for several: a tensor that is a copy only for several would
        make an example's answer depend on whether it is alone."""
        if target.kind != "rows" or not all(map(_lie_apart, _tensors(target))):
            raise Unsupported("it writes into what the model holds, or into what several examples share")
        for other in self.values.values():
            shared = [_shared(getattr(target, size), getattr(other, size)) for size in ("small", "large")]
            if any(shared) and (other.kind != "rows" or not all(shared)):
                raise Unsupported("it writes into what the model holds, or into what is a copy at some sizes of batch")

    def _check_output(self, result: Any) -> None:
        value = self.values.get(result) if isinstance(result, fx.Node) else None
        if value is None or value.kind != "rows" or not isinstance(value.small, torch.Tensor):
            raise Unsupported("its answer is not one tensor of scores")
        refuse((len(value.small), len(value.large)) != (SMALL, LARGE), "its answer has not one row for every example")


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, list | tuple) else isinstance(value, PLAIN)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, Value):
        yield from _tensors((value.small, value.large))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, torch.Tensor):
        yield value


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _lie_apart(rows: torch.Tensor) -> bool:
    # whether each row ends in memory before the next one begins
    length = 1 + sum((size - 1) * step for size, step in zip(rows.shape[1:], rows.stride()[1:], strict=True))
    return not rows.numel() or len(rows) == 1 or rows.stride(0) >= length


def _shared(one: Any, other: Any) -> bool:
    mine = {tensor.untyped_storage().data_ptr() for tensor in _tensors(one)}
    return any(tensor.untyped_storage().data_ptr() in mine for tensor in _tensors(other))


def _at(size: str, arguments: Any) -> Any:
    return map_aggregate(arguments, lambda one: getattr(one, size) if isinstance(one, Value) else one)


def _at_both(function: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[Any, Any]:
    return function(*_at("small", args), **_at("small", kwargs)), function(*_at("large", args), **_at("large", kwargs))


def _fact(value: Any, name: Any) -> Value:
    small, large = getattr(value.small, name), getattr(value.large, name)
    if value.kind == "const" or name in FACTS:
        return Value("const", small, large)
    if name == "shape":
        return Value("const" if value.kind == "weight" else "size", small, large)
    if name == "mT" and value.kind == "rows" and value.rank > 2:
        return Value("rows", small, large)
    raise Unsupported("it is not known to keep examples apart")


def _of_sizes(function: Any, first: Value, second: Any) -> Value | None:
    """An entry of a shape or of several results, and a multiple of the batch; None where the arguments are something else."""
    part = function is operator.getitem and isinstance(first.small, tuple | list)
    if not part and (function is not operator.mul or {type(first.small), type(_at("small", second))} != {int}):
        return None
    small, large = _at_both(function, (first, second), {})
    if part and first.kind != "size":
        return Value(first.kind, small, large)
    if not part and small != large and isinstance(second, Value) and "size" == second.kind == first.kind:
        raise Unsupported("it squares the size of the batch")
    return Value("const" if small == large else "size", small, large)


def _method(name: str) -> Callable[..., Any]:
    return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)
