"""`[accept]` of `budget.toml`: what a site's people have consented to, before anything of it is built or imported."""

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, field_validator

from tacit import check
from tacit.deploy.site.deployable import OWN_FILES
from tacit.deploy.site.layout import BUDGET, after_colon
from tacit.errors import Refused
from tacit.experiment import Experiment
from tacit.experiment.file import keys

SECTION_KEYS = (*Experiment.model_fields, *keys())  # what accept.settings may name
OPTIONS = ("aggregate.", "data.", "model.")  # tables whose other keys are the options of the part they name


class Accept(BaseModel):
    """Which experiments may run: those of a digest, or those whose settings are among the allowed ones. Empty, nothing may run.

    `settings` has a value, a list of values, or a least and a largest number for a "section.key"; whatever it does not name must
    have its default. Rows are then read only in the ways of `data` (digests of `[data]`), because whoever may choose how rows are
    read can ask about their values. `code` lists "package.module:name" = SHA-256 of its file.

    >>> Accept(settings={"train.rounds": {"max": 50}, "privacy.kind": ["local"]}).experiments
    ()
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiments: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    data: tuple[str, ...] = ()
    code: dict[str, str] = {}

    @field_validator("settings")
    @classmethod
    def _understood(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key, allowed in settings.items():
            if key not in SECTION_KEYS and not key.startswith(
                OPTIONS
            ):  # an option is understood by the part that takes it
                raise ValueError(f"accept.settings: {after_colon(check.unknown(key, SECTION_KEYS))}")
            numbers = isinstance(allowed, dict) and all(type(end) in (int, float) for end in allowed.values())
            if isinstance(allowed, dict) and not (numbers and allowed and set(allowed) <= {"min", "max"}):
                raise ValueError(f"{key} wants a value, a list of values, or {{min = ..., max = ...}}.")
        return settings


# Consent: by digest (this very experiment) or by settings (anything within a frame).

HELD_ELSEWHERE = (
    "name",
    "privacy.epsilon",
    "privacy.delta",
    "privacy.delta_share",
)  # no effect, or held by the limits themselves
MOST_NAME = 100  # characters of an experiment's name: it stands in logs


def digest(experiment: Experiment) -> str:
    """The SHA-256 of every key of an experiment, its name and its defaults included: what a site lists to accept this very one.

    >>> digest(Experiment()) == digest(Experiment(run={"seed": 0})) != digest(Experiment(run={"device": "cuda"}))
    True
    """
    return _hash(experiment.model_dump(mode="json", exclude_none=True))


def data_digest(experiment: Experiment) -> str:
    """The SHA-256 of the `[data]` table, which says how rows are read: where, by which source, with which options.

    A seed that decides which rows a site trains on is part of that: a greeting's count for every seed would name the records.
    """
    data = experiment.data
    chosen = {"seed": experiment.seeds.data} if data.held_out is not None or data.name not in OWN_FILES else {}
    return _hash(data.model_dump(mode="json", exclude_none=True) | chosen)


def departures(experiment: Experiment) -> dict[str, Any]:
    """Every setting that is not the default, but `[data]` and what the limits hold: what consent by settings must name.

    >>> departures(Experiment(train={"rounds": 3}, run={"seed": 1}))
    {'train.rounds': 3, 'run.seed': 1}
    """
    values, usual = _settings(experiment), _settings(Experiment())
    changed = {
        f"{section}.{key}": value
        for section, table in values.items()
        if isinstance(table, dict) and section != "data"
        for key, value in table.items()
        if value != (usual[section] or {}).get(key)
    }
    return {key: value for key, value in changed.items() if key not in HELD_ELSEWHERE}


def _settings(experiment: Experiment) -> dict[str, Any]:
    """Every setting as a site can write it: TOML has no word for an entry of a table that is not there."""
    values, written = experiment.model_dump(mode="json"), experiment.model_dump(mode="json", exclude_none=True)
    return {
        name: {key: written[name].get(key) for key in table} if isinstance(table, dict) else table
        for name, table in values.items()
    }


def refuse_unknown(accept: Accept, experiment: Experiment) -> None:
    """Refuses what is neither named by digest nor within the allowed settings. Raises: Refused."""
    known = digest(experiment)
    if known in accept.experiments:
        return
    if not accept.settings:
        plain = experiment.name.isprintable() and len(experiment.name) <= MOST_NAME
        name = experiment.name if plain else "without a name"
        raise Refused(f"The experiment {name} (digest {known}) is not among those that the site's {BUDGET} accepts.")
    values = _settings(experiment)
    for name, allowed in accept.settings.items():
        section, _, key = name.partition(".")
        value = values.get(section)
        value = value.get(key) if isinstance(value, Mapping) and key else value
        if not _within(value, allowed):
            raise Refused(f"The server asks for {name} = {value!r}; the site allows {_words(allowed)}.")
    for name, value in departures(experiment).items():
        if name not in accept.settings:
            raise Refused(
                f"The server sets {name} = {value!r}, which the site's {BUDGET} does not name in accept.settings."
            )
    if data_digest(experiment) not in accept.data:
        raise Refused(
            f"The experiment reads rows in a way (digest {data_digest(experiment)} of [data]) that the site's {BUDGET} does not"
            " list in accept.data."
        )


def _within(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, Mapping):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and allowed.get("min", value) <= value <= allowed.get("max", value)
    return value in allowed if isinstance(allowed, list) else value == allowed


def _words(allowed: Any) -> str:
    if isinstance(allowed, Mapping):
        return " and ".join(
            f"at {'least' if end == 'min' else 'most'} {number!r}" for end, number in sorted(allowed.items())
        )
    return " or ".join(repr(value) for value in allowed) if isinstance(allowed, list) else repr(allowed)


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# Nothing that a server sends is code: what an experiment names as "package.module:name" runs only if the site listed it.

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

    Guarantee: what is not listed is not looked up at all, and the named module is not imported here; the packages above it are,
    because Python finds a module by them. Assumes: the file does not change before the import. Raises: Refused.
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


def lines_to_list(listed: Mapping[str, str], experiment: Experiment) -> dict[str, Path]:
    """The lines that `[accept.code]` lacks for an experiment, each with the file that the site's people read before they add it.

    Guarantee: nothing is imported: whoever looks has not consented yet. A line says one name and one hash and no more.
    """
    files = {name: _file(name) for name in named_code(experiment) if PLAIN.fullmatch(name)}
    digests = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file is not None}
    wanted = {name: found for name, found in digests.items() if listed.get(name, "").lower() != found}
    return {f'"{name}" = "{found}"': cast(Path, files[name]) for name, found in wanted.items()}


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
