"""A deployment is tried with the experiments of the engine's tests."""

from engine.conftest import small

__all__ = ["small"]
