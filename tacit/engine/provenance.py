"""Where a run's numbers came from: code, packages and machine, for its summary. No path, host or person is in it."""

import os
import platform
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.build.parts import Parts
from tacit.build.release import package, processor
from tacit.machine import cores

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "scikit-learn")
PATIENCE = 10.0  # seconds that git may take to look at the package's files


def provenance(parts: Parts) -> dict[str, Any]:
    """The version, the commit where the package lies in a git checkout, Python and packages, processor, GPUs and platform.

    Guarantee: no file is named, nor the machine or whoever uses it. `dirty` says that files of the package differ from the commit;
    `code` is a hash of them all, which stands in the key of every noise too. What cannot be found is None.
    """
    run, kinds = parts.experiment.run, {device.partition(":")[0] for device in parts.experiment.run.devices}
    return {
        "tacit": tacit.__version__,
        **_checkout(Path(tacit.__file__).parent),
        "code": package(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}".strip(),
        "processor": processor(),
        "cores": cores(),
        "workers": run.workers or cores(),
        "threads": parts.threads,
        "device": run.device,
        "gpus": [torch.cuda.get_device_name(name) for name in run.devices] if kinds == {"cuda"} else [],
        "cuda": torch.version.cuda if kinds == {"cuda"} else None,
    }


@lru_cache(maxsize=1)
def _checkout(home: Path) -> dict[str, Any]:
    """The commit of the checkout that the package's folder lies in, and whether the package is as it was committed."""
    nothing = {"commit": None, "dirty": None}
    if not (
        home.parent / ".git"
    ).exists():  # installed, perhaps into an environment that lies in somebody else's checkout
        return nothing
    try:
        commit = _git(home, "rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(_git(home, "status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return nothing


def _git(home: Path, *words: str) -> str:
    """What git says. Raises OSError or SubprocessError where it cannot, or takes too long."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # another checkout's
    quiet = {"stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL, "timeout": PATIENCE}
    command = ["git", "--no-optional-locks", "-C", str(home), *words]
    return subprocess.run(
        command, env=own, text=True, errors="replace", check=True, stdout=subprocess.PIPE, **quiet
    ).stdout


def _version(name: str) -> str | None:
    module = sys.modules.get(name)
    try:
        return str(getattr(module, "__version__", None) or version(name))
    except PackageNotFoundError:
        return None
