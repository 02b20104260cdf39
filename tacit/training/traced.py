"""A model's forward pass as a graph in which every operation is known to keep the examples of a batch apart.

The graph is read from a copy of the model (torch.fx) and is what runs afterwards, not the model's own code: whatever that code
would do at another size of batch, in a later call, or with what it remembers, cannot happen."""

import operator
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType
from typing import Any, Protocol

import torch
from torch import fx, nn

from tacit.training.flat import fresh, hooked
from tacit.training.independence import (
    FUNCTIONS,
    LARGE,
    METHODS,
    MODULES,
    SHAPED,
    SMALL,
    Rule,
    Unsupported,
    Value,
    inside,
    is_rows,
)

FACTS = ("dtype", "device", "ndim", "is_cuda", "itemsize")  # of a tensor, the same for every batch
PLAIN = (torch.Tensor, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Recorder(Protocol):
    """Is told of every use of a layer: its number, what it read and what it answered."""

    def record(self, index: int, a: torch.Tensor, output: torch.Tensor) -> None: ...


Forward = Callable[[torch.Tensor, Recorder], torch.Tensor]


class Root(nn.Module):
    """Calls the model with one argument, so that its other arguments keep their defaults."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's answer. How the caller's rows lie in memory would decide which operations copy and which do not."""
        return self.model(x.contiguous())


class Tracer(fx.Tracer):
    """Looks into every module except those on the list."""

    proxy_buffer_attributes = True  # so that writing into a buffer is seen

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in MODULES


def traced(model: nn.Module, layers: list[nn.Module], x: torch.Tensor) -> Forward:
    """The forward pass, telling a recorder of these layers. `x`: SMALL + LARGE rows like those to come. Raises: Unsupported."""
    root, graph = analysed(fresh(model), x)
    numbers = {name: layers.index(module) for name, module in model.named_modules() if module in layers}
    return recorded(root, graph, dict(zip(named_layers(numbers), numbers.values(), strict=True)))


def analysed(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, fx.Graph]:
    """A model's graph, whose operations all keep examples apart, and the module that it runs in. Raises: Unsupported."""
    refuse_hooks(model)
    root = Root(model)
    try:
        graph = Tracer().trace(root)
        Analysis(root).run(graph, x)
    except Unsupported:
        raise
    except Exception as error:  # a model's own code may raise anything when it is given symbols
        text = str(error).partition("\n")[0] or type(error).__name__
        raise Unsupported(f"its forward pass cannot be traced ({text})") from error
    return root, graph


def named_layers(names: Iterable[str]) -> list[str]:
    """Where layers of a model are in the module that its graph runs in."""
    return [f"model.{name}" if name else "model" for name in names]


def recorded(root: nn.Module, graph: fx.Graph, numbers: dict[str, int]) -> Forward:
    """The graph as a function of the rows and a recorder."""
    first = next(node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(first):
        recorder = graph.placeholder("recorder")
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target in numbers:
            with graph.inserting_after(node):
                graph.call_method("record", (recorder, numbers[node.target], node.args[0], node))
    return fx.GraphModule(root, graph).forward


def refuse_hooks(model: nn.Module) -> None:
    """Raises: Unsupported for code that would run beside the forward pass that was read."""
    for name, module in model.named_modules():
        if hooked(module):
            raise Unsupported(f"{name or type(module).__name__!r} carries a hook or a forward pass of its own")
    if torch.nn.modules.module._has_any_global_hook():
        raise Unsupported("torch's modules carry a hook")


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
        known: Any = self.values.__getitem__
        args, kwargs = fx.map_arg((node.args, node.kwargs), known)
        try:
            value = self._value(node, args, kwargs)
            if value.kind == "const" and not _plain(value.small):
                raise Unsupported(
                    "it gives something else than tensors and numbers, which could be written into unseen"
                )
            return value
        except Unsupported as error:
            raise Unsupported(f"{_name(node)}: {error}") from None

    def _value(self, node: fx.Node, args: tuple, kwargs: dict) -> Value:
        if node.op == "get_attr":
            return _held(operator.attrgetter(str(node.target))(self.root))
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
            found = _asked(str(node.target), args, kwargs)
            if found:
                return found
            return self._called(METHODS.get(str(node.target)), _method(str(node.target)), args, kwargs)
        function: Any = node.target
        if not _of_torch(function):
            raise Unsupported("it is code that may remember how often it was called")
        if function in (operator.mul, operator.getitem) and args[0].__class__ is Value:
            found = _of_sizes(function, *args)
            if found:
                return found
        return self._called(FUNCTIONS.get(function), function, args, kwargs)

    def _called(self, rule: Rule | None, function: Any, args: tuple, kwargs: dict, extra: tuple = ()) -> Value:
        """The result of an operation that its rule allows; anything may be done with constants except to write into them."""
        found = list(inside(*args, kwargs))
        const = {value.kind for value in found} <= {"const"}
        if not const:
            if rule is None:
                raise Unsupported("it is not known to keep examples apart")
            rule((*args, *extra), kwargs)
        before = [[(t._version, _place(t)) for t in _tensors(value)] for value in found]
        small, large = (function(*_at(size, args), **_at(size, kwargs)) for size in ("small", "large"))
        for value, then in zip(found, before, strict=True):
            if [_place(t) for t in _tensors(value)] != [place for _, place in then]:
                raise Unsupported("it gives a tensor another place in memory")
            if [t._version for t in _tensors(value)] != [version for version, _ in then]:
                self._refuse_write(value)
        if const:
            return Value("const", small, large)
        if not is_rows(small, large):
            raise Unsupported("its result has not the batch outermost")
        return Value("rows", small, large)

    def _refuse_write(self, target: Value) -> None:
        """Raises: Unsupported unless what is written are rows that lie apart, in memory that they share with other rows at most.

        What shares it must be the same for one example as for several: a tensor that is a copy only for several would make an
        example's answer depend on whether it is alone.
        """
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
        if (len(value.small), len(value.large)) != (SMALL, LARGE):
            raise Unsupported("its answer has not one row for every example")


def _held(value: Any) -> Value:
    trainable = isinstance(value, torch.Tensor) and value.requires_grad
    return Value("weight" if trainable else "const", value, value)


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
    if isinstance(arguments, Value):
        return getattr(arguments, size)
    if isinstance(arguments, dict):
        return {key: _at(size, argument) for key, argument in arguments.items()}
    if isinstance(arguments, slice):
        return slice(*(_at(size, part) for part in (arguments.start, arguments.stop, arguments.step)))
    if isinstance(arguments, list | tuple):
        return type(arguments)([_at(size, argument) for argument in arguments])
    return arguments


def _fact(value: Any, name: Any) -> Value:
    small, large = getattr(value.small, name), getattr(value.large, name)
    if value.kind == "const" or name in FACTS:
        return Value("const", small, large)
    if name == "shape":
        return Value("const" if value.kind == "weight" else "size", small, large)
    if name == "mT" and value.kind == "rows" and value.rank > 2:
        return Value("rows", small, large)
    raise Unsupported("it is not known to keep examples apart")


def _asked(name: str, args: tuple, kwargs: dict) -> Value | None:
    """`size` and `dim`, which ask about a tensor's shape."""
    if name not in ("size", "dim") or args[0].kind == "const":
        return None
    small, large = (_method(name)(*_at(size, args), **_at(size, kwargs)) for size in ("small", "large"))
    return Value("const" if small == large else "size", small, large)


def _of_sizes(function: Any, first: Value, second: Any) -> Value | None:
    """An entry of a shape or of several results, and a multiple of the batch; None where the arguments are something else."""
    if function is operator.getitem and isinstance(first.small, tuple | list):
        small, large = (function(_at(size, first), _at(size, second)) for size in ("small", "large"))
        if first.kind == "size":
            return Value("const" if small == large else "size", small, large)
        return Value(first.kind, small, large)
    if function is operator.mul and {type(first.small), type(_at("small", second))} == {int}:
        small, large = (function(_at(size, first), _at(size, second)) for size in ("small", "large"))
        const = small == large
        if not const and isinstance(second, Value) and "size" == second.kind == first.kind:
            raise Unsupported("it squares the size of the batch")
        return Value("const" if const else "size", small, large)
    return None


def _of_torch(function: Any) -> bool:
    """Whether a function is torch's own or Python's: what a model's author has wrapped runs whenever the graph does."""
    return isinstance(function, BuiltinFunctionType) or str(function.__module__).partition(".")[0] in (
        "torch",
        "_operator",
    )


def _method(name: str) -> Callable[..., Any]:
    return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).removeprefix("model.")
