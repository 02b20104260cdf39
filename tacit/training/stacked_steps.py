"""The steps of a whole cohort, all clients in step: plain SGD and DP-SGD on rows (client, parameter) of one matrix.

The twins of `sgd.sgd` and `dp_sgd.dp_sgd`: the same batches, so that the two differ by float32 rounding, and by how they are noised
where noise is drawn on the device. Every argument that changes from round to round is a tensor, so that the whole of it can be
recorded once and played again (`Captured`)."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tacit.training.fused import step_
from tacit.training.optimizer import Descent, Motion
from tacit.training.stacked import Stackable

# a step's rows (client, example, ...) and its number -> their views; sums (client, parameter) and it -> the same with their noise
Shown = Callable[[torch.Tensor, int], torch.Tensor]
Noise = Callable[[torch.Tensor, int], torch.Tensor]


def sgd_steps(
    stack: Stackable,
    start: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    places: torch.Tensor,
    mask: torch.Tensor,
    rate: torch.Tensor,
    correction: torch.Tensor | None = None,
    *,
    descent: Descent,
    uneven: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clients' differences after their own numbers of steps, and the losses of their last batches.

    `uneven` says that some take fewer steps than others; else an empty batch is that of nobody, whose row nobody reads.
    """
    clients = places.shape[1]
    first = stack.cut(start)
    parts = [
        part.expand(clients, -1).clone() for part in first
    ]  # each block by itself, so that it is one piece of memory
    moves = motions(stack, descent, first, correction)
    last = start.new_zeros(clients)
    for rows, own in zip(places, mask, strict=True):
        count = own.sum(1)
        found = stack.gradients(parts, x[rows], y[rows], own / count.clamp(min=1.0)[:, None])
        for part, gradient, move in zip(parts, found.blocks, moves, strict=True):
            along = move(gradient, part)
            step_(part, torch.where(count[:, None] > 0, along, 0.0) if uneven else along, rate)
        last = torch.where(count > 0, found.losses, last)
    moved = start.new_empty(clients, len(start))
    for into, part, own in zip(stack.cut(moved), parts, first, strict=True):
        torch.sub(part, own, out=into)
    return moved, last


def dp_sgd_steps(
    stack: Stackable,
    start: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    places: torch.Tensor,
    mask: torch.Tensor,
    rates: torch.Tensor,
    summed: torch.Tensor,
    correction: torch.Tensor | None = None,
    *,
    descent: Descent,
    clip: float,
    noise: Noise,
    shown: Shown | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clients' noised differences, and what the researcher may see of each: its loss, its examples, how many were clipped."""
    theta, seen = stack.rows(start, places.shape[1]), start.new_zeros(3, places.shape[1])
    move = Motion(descent, start, correction)
    for step, (rows, own) in enumerate(zip(places, mask, strict=True)):
        seen_as = x[rows] if shown is None else shown(x[rows], step)
        at = (stack, theta, seen, seen_as, y[rows], own, rates, summed, move)
        dp_sgd_step(*at, clip=clip, noise=lambda sums, s=step: noise(sums, s))
    return theta - start, seen


def dp_sgd_step(
    stack: Stackable,
    theta: torch.Tensor,
    seen: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    mask: torch.Tensor,
    rates: torch.Tensor,
    summed: torch.Tensor,
    move: Motion,
    *,
    clip: float,
    noise: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """One step of all clients, in place: the clipped sums, their noise, and the step along them (lines 11 to 14)."""
    sums, norms, losses = stack.clipped_sums(theta, x, y, mask, clip=clip)
    seen += torch.stack([losses.nan_to_num(0.0, 0.0, 0.0) * mask, mask, (norms > clip) * mask]).sum(2)
    noisy = noise(sums).to(theta.dtype)  # rounded once, after the noise
    theta.addcmul_(move(noisy, theta, summed=summed[:, None]), rates[:, None], value=-1)


def motions(
    stack: Stackable, descent: Descent, first: list[torch.Tensor], correction: torch.Tensor | None
) -> list[Motion]:
    """The motions of all clients, block by block, each from where all begin."""
    corrections = [None] * len(first) if correction is None else stack.cut(correction)
    return [Motion(descent, part, own) for part, own in zip(first, corrections, strict=True)]


# A function of tensors that is called again and again: on a CUDA device it is recorded once for each shape, and then
# played.

RECORDING = threading.Lock()  # one at a time, whichever device and thread it is for
MOST_GRAPHS = 16  # each holds the memory of its intermediate results

Function = Callable[..., tuple[torch.Tensor, ...]]
Shape = tuple[tuple[torch.Size, torch.dtype], ...]


class Captured:
    """`function`, whose arguments and results are tensors. Results are the caller's: the next call leaves them alone."""

    def __init__(self, function: Function):
        self.function = function
        self._seen: OrderedDict[Shape, Graph | None] = OrderedDict()  # None: seen once, as it is
        self.refused = ""  # why nothing is recorded any more
        self._pool: Any = None  # one memory for all graphs: none is played while another's results are needed

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not tensors[0].is_cuda or self.refused:
            return self.function(*tensors)
        shape = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        graph = self._seen.get(shape)
        if graph is None:
            known = shape in self._seen
            graph = self._record(tensors) if known else None
            self._seen[shape] = graph
            if graph is None:
                return self.function(*tensors)
        self._seen.move_to_end(shape)
        while len(self._seen) > MOST_GRAPHS:
            self._seen.popitem(last=False)
        return graph(*tensors)

    def _record(self, tensors: tuple[torch.Tensor, ...]) -> "Graph | None":
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            return Graph(self.function, tensors, self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that a graph cannot hold
            self.refused = str(error).partition("\n")[0]
            torch.cuda.synchronize()
            return None


class Graph:
    """One recorded call."""

    def __init__(self, function: Function, tensors: tuple[torch.Tensor, ...], pool: Any):
        self.inputs = [tensor.clone() for tensor in tensors]
        self.graph = torch.cuda.CUDAGraph()
        # torch's own stream for recording is one for all devices and threads: what two record there at once is mixed up
        stream = torch.cuda.Stream(tensors[0].device)
        with RECORDING, torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self.outputs = function(*self.inputs)

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for own, tensor in zip(self.inputs, tensors, strict=True):
            own.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)


# A device made ready beside what else is done: its context and its libraries take about a second, in which rows can be
# read.


def warm(devices: Sequence[str]) -> None:
    """Has CUDA devices wake up in a thread, and says nothing about what fails: the run will.

    A process that ends meanwhile waits for it: torch aborts where Python ends beside a thread that is at work in it.
    """
    awake = [name for name in devices if name.startswith("cuda")]
    if awake:
        threading.Thread(target=_woken, args=(awake,)).start()


def _woken(devices: Sequence[str]) -> None:
    for name in devices:
        try:
            images = torch.zeros(1, 1, 8, 8, device=name)
            F.conv2d(images, images[..., :3, :3])
            torch.mm(images[0, 0], images[0, 0])
        except Exception:  # noqa: BLE001 - no such device, or a full one: whoever uses it is told
            return
