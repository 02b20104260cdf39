"""Nothing that a server sends is code: what an experiment names as "package.module:name" runs here only if the site listed it.

The site's own file lists the name with the SHA-256 of the file it comes from, which is compared before the import. Importing a
name imports the packages above it too: listing it says that these are trusted.
"""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tacit.errors import Refused
from tacit.experiment import Experiment

PLAIN = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*", re.ASCII)


def named_code(experiment: Experiment) -> list[str]:
    """What an experiment names as "package.module:name": whatever part of it is not Tacit's.

    >>> named_code(Experiment(model={"name": "hospital.models:cnn"}, task={"loss": "hospital.losses:focal"}))
    ['hospital.models:cnn', 'hospital.losses:focal']
    """
    parts = (experiment.model.name, experiment.aggregate.rule, experiment.data.name, experiment.privacy.kind)
    names = (*parts, experiment.task.kind, experiment.task.loss, experiment.metric.choose)
    return [name for name in names if name is not None and ":" in name]


def refuse_unlisted(listed: Mapping[str, str], experiment: Experiment) -> None:
    """Refuses code that the site does not list, that is not installed there, or whose file is another than the listed one.

    Guarantee: the named module itself is not imported here; the packages above it are, once the name is listed, because Python
    finds a module by them. Nothing that is not listed is looked up at all.

    Assumes: the file does not change between this and the import.

    Raises: Refused.
    """
    for name in named_code(experiment):
        if name not in listed:
            raise Refused(
                f"The experiment names code ({name[:100]!r}) that the site's budget.toml does not list in accept.code."
            )
        known = code_digest(name)
        if not known:
            raise Refused(
                f"The module of {name!r}, which the site's budget.toml lists in accept.code, is not installed here: a site does not"
                " search the current folder, so install the package that holds it at the site."
            )
        if known != listed[name].lower():
            raise Refused(
                f"The file of {name!r} is another than the one that the site's budget.toml lists in accept.code."
            )


def lines_to_list(listed: Mapping[str, str], experiment: Experiment) -> dict[str, Path]:
    """The lines that `[accept.code]` lacks for an experiment, each with the file that the site's people read before they add it.

    Guarantee: nothing is imported, also no package above a module: whoever looks has not consented yet. A name that is more than
    names and dots is left out, so that no line says more than one name and one hash; so is what is not installed here.
    """
    files = {name: _file(name) for name in named_code(experiment) if PLAIN.fullmatch(name)}
    marks = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file is not None}
    wanted = {name: mark for name, mark in marks.items() if listed.get(name, "").lower() != mark}
    return {f'"{name}" = "{mark}"': cast(Path, files[name]) for name, mark in wanted.items()}


def absent(listed: Mapping[str, str], experiment: Experiment) -> list[str]:
    """What an experiment names and the site neither lists nor has: then there is no hash to list yet. Nothing is imported."""
    return [name for name in named_code(experiment) if name not in listed and PLAIN.fullmatch(name) and not _file(name)]


def _file(name: str) -> Path | None:
    """The file of a "package.module:name", found as an import would find it and without one; None where there is none."""
    parts, places, spec = name.partition(":")[0].split("."), None, None
    for depth in range(len(parts)):
        whole = ".".join(parts[: depth + 1])
        found = (finder.find_spec(whole, places) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        if places is None and depth + 1 < len(parts):
            return None
    file = Path(spec.origin) if spec and spec.has_location and spec.origin else None
    return file if file is not None and file.is_file() else None


def code_digest(name: str) -> str:
    """The SHA-256 of the file that "package.module:name" comes from; empty where there is none, which no listed hash equals.

    >>> code_digest("no.such.module:thing")
    ''
    """
    try:
        spec = importlib.util.find_spec(name.partition(":")[0])
        return hashlib.sha256(Path(str(spec and spec.origin)).read_bytes()).hexdigest()
    except (ImportError, OSError, ValueError, AttributeError):
        return ""
