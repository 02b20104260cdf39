"""Nothing that a server sends is code: what an experiment names as "package.module:name" runs here only if the site listed it.

The site's own file lists the name with the SHA-256 of the file it comes from, which is compared before the import. Importing a
name imports the packages above it too: listing it says that these are trusted.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from tacit.errors import Refused
from tacit.experiment import Experiment


def named_code(experiment: Experiment) -> list[str]:
    """What an experiment names as "package.module:name": whatever part of it is not Tacit's.

    >>> named_code(Experiment(model={"name": "hospital.models:cnn"}, task={"loss": "hospital.losses:focal"}))
    ['hospital.models:cnn', 'hospital.losses:focal']
    """
    parts = (experiment.model.name, experiment.aggregate.rule, experiment.data.name, experiment.privacy.kind)
    names = (*parts, experiment.task.kind, experiment.task.loss, experiment.metric.choose)
    return [name for name in names if name is not None and ":" in name]


def refuse_unlisted(listed: Mapping[str, str], experiment: Experiment) -> None:
    """Refuses code that the site does not list, or whose file is another than the listed one.

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
        if code_digest(name) != listed[name].lower():
            raise Refused(
                f"The file of {name!r} is another than the one that the site's budget.toml lists in accept.code."
            )


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
