"""A site's process without what it never uses: two packages are opened only as far as they are needed.

Tacit takes events and one accountant from dp_accounting, whose own `__init__` also loads SciPy's signal processing, statistics
and optimisation; Flower takes four names from fastapi. Together they are a sixth of a site's memory. Here a package's `__init__`
runs when something else is asked of it, so nothing is missing, only later.
"""

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

EVENTS = ("", "Gaussian", "PoissonSampled", "SampledWithoutReplacement", "SelfComposed")
NAMES = {  # of a package, and the module in which each is made
    "dp_accounting": {f"{kind}DpEvent": "dp_accounting.dp_event" for kind in EVENTS},
    "fastapi": {
        "HTTPException": "fastapi.exceptions",
        "Request": "starlette.requests",
        "Response": "starlette.responses",
        "status": "starlette",
    },
}
_LOCK = threading.RLock()


def be_lean() -> None:
    """Opens the packages of `NAMES` late from now on; one that is loaded already stays as it is. May be repeated.

    Guarantee: every name of a package is the one it would have been: the first that is not in `NAMES`, nor a module of the
    package, runs the package's own `__init__`, once. Assumes: it is called before the imports that it spares.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Late(ModuleType):
    """A package whose `__init__` has not run; `_init` is its loader until then."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and not self._light(name):
            with _LOCK:
                loader, vars(self)["_init"] = vars(self)["_init"], None
                if loader is not None:
                    loader.exec_module(self)
        if name not in vars(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return vars(self)[name]

    def _light(self, name: str) -> bool:
        """Whether a name could be had from the module that makes it, or as a module of the package."""
        maker = NAMES[self.__name__].get(name)
        if maker:
            vars(self)[name] = getattr(import_module(maker), name, None) or import_module(f"{maker}.{name}")
        elif find_spec(f"{self.__name__}.{name}"):
            import_module(f"{self.__name__}.{name}")  # which sets it here
        return name in vars(self)


class _Loader(importlib.abc.Loader):
    """Makes a package without running its `__init__`, and remembers who would run it."""

    def __init__(self, real: importlib.abc.Loader):
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Late(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_init"] = self._real


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the packages of `NAMES` where Python would, and has them made by `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in NAMES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec
