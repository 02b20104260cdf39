"""Attacks multiply many small tensors, and some of their runs fork: one thread."""

from threads import one_thread

__all__ = ["one_thread"]
