"""A function of tensors that is called again and again: on a CUDA device it is recorded once for each shape, and then played.

A recorded graph launches hundreds of kernels at the cost of one. The first call of a shape runs as it is, which also lets libraries
choose and set up their kernels; the second is recorded. What cannot be recorded (it asks the device something on the way) runs as
it is for ever. Random numbers of torch's own generator go on from call to call, recorded or not.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

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
        """The function's results."""
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
        """Plays it with other numbers."""
        for own, tensor in zip(self.inputs, tensors, strict=True):
            own.copy_(tensor, non_blocking=True)
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)
