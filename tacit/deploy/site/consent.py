"""Which experiments a site takes part in: those that can be deployed, and that `[accept]` of its budget.toml consents to.

Nothing of an experiment is built, opened or imported before that. Loads no torch."""

import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from tacit import check, wire
from tacit.data.texts import FROM_DATA
from tacit.deploy.site.layout import BUDGET, after_colon
from tacit.errors import BadInput, Refused
from tacit.experiment import Experiment
from tacit.experiment.file import keys

OWN_FILES = ("csv", "npz")  # sources where every site has a file of its own; the others are shared out for a trial


# Which experiments can be deployed, and what they name for a site.


@lru_cache(maxsize=16)
def read_experiment(text: str) -> Experiment:
    """The experiment that the server's text describes, which may be any text. Raises: Refused.

    Nothing is imported, opened or run; what is returned has a site open no path of the server's, and can be deployed.
    """
    try:
        experiment = Experiment(**wire.toml_table(text, what="Its text"))
        refuse_paths(experiment)
        refuse_undeployable(experiment)
        refuse_unpinned(experiment)
        return experiment
    except (BadInput, TypeError) as error:  # TypeError: a key that is no name of an argument
        raise Refused(f"The server's experiment cannot be used: {str(error)[:500]}") from None


def refuse_paths(experiment: Experiment) -> None:
    """Refuses what would have a site open a path of the server's: its own site.toml says where rows lie. Raises: BadInput."""
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict) and set(epsilon) == {"file"} and isinstance(epsilon["file"], str):
        raise BadInput("A site opens no file that the server names: write the epsilons into privacy.epsilon itself.")
    if experiment.data.name not in OWN_FILES and "path" in experiment.data.options():
        raise BadInput("A site opens no folder that the server names: leave out data.path.")


WATCHED = (
    "In a deployment whoever watches the network sees who takes part in a round, and this epsilon counts on nobody's seeing it: set"
    ' privacy.sampler = "cyclic", whose epsilon counts on no secret; or have every site in every round (leave out'
    " train.clients_per_round and privacy.adaptive_clip, and give one epsilon); or, if nobody whom the promise is against can see"
    ' the traffic or the server\'s log, say so by privacy.network = "unwatched".'
)


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuses settings that make sense in one process only, such as a common ledger. Raises: BadInput."""
    data, privacy, options = experiment.data, experiment.privacy, experiment.data.options()
    own, declares = data.name in OWN_FILES, "test_path" in options or options.get("test_share") == 0
    changes = {
        "leave out data.client_column": "client_column" in options,
        'set data.partition = "natural"': data.partition != "natural" or "client_column" in options,
        "set data.test_path to public test rows, or, where nobody has public rows, data.test_share = 0": not declares,
    }
    needed = [change for change, is_so in changes.items() if is_so]
    unfit = {
        "[attack] makes clients of a simulation malicious, and in a deployment nobody is on purpose: leave it out.": (
            experiment.attack is not None
        ),
        "metric.per_client reads every client's rows, which only a simulation can: leave it out.": (
            experiment.metric.per_client
        ),
        f"In a deployment every site has its own file, and the server holds no client's rows: {'; '.join(needed)}.": (
            own and bool(needed)
        ),
        'In a deployment no site knows the labels of another: declare them, as in data.classes = ["no", "yes"].': (
            own and options.get("classes") == FROM_DATA
        ),
        'No site exceeds its own budget: set privacy.level = "own" or "minimum".': privacy.level == "maximum",
        "In a deployment every site keeps its own ledger: leave out privacy.ledger.": privacy.ledger is not None,
        WATCHED: experiment.secret_cohorts and privacy.network is None,
        "In a deployment a site audits itself, and nobody else plants anything: leave out [audit], and set canaries in the"
        " site.toml of whoever wants to.": experiment.audit.canaries is not None,
        "SCAFFOLD tells the clients of a round the control variates of all of them, which a deployment does not send: leave out"
        " train.control.": experiment.train.control is not None,
        "A deployment makes its own keys, so that no file ever holds them all: leave out protect.key.": (
            experiment.protect.key_file is not None
        ),
        "In a deployment own models ([personal], data.own_share) are each site's own choice: leave them out, and set [personal] in"
        " the site.toml of whoever wants them.": experiment.personal.kind is not None or data.own_share is not None,
    }
    for why, is_so in unfit.items():
        if is_so:
            raise BadInput(why)


def refuse_unpinned(experiment: Experiment) -> None:
    """Refuses csv rows whose columns every site would take from its own file: one model on columns of different meaning."""
    if experiment.data.name == "csv" and "columns" not in experiment.data.options():
        raise BadInput("In a deployment all sites read the same columns in the same order: list them in data.columns.")


DEALT = "client-"  # how clients are named that rows are dealt out to


def proposed(experiment: Experiment, name: str) -> float:
    """The epsilon that an experiment names for a site; infinity where it promises nothing. Raises: Refused where it names none.

    >>> proposed(Experiment(privacy={"kind": "local", "epsilon": {"north": 1.0, "coast": 3.0}}), "coast")
    3.0
    """
    epsilon = experiment.privacy.epsilon
    if isinstance(epsilon, dict):
        own = epsilon.get(name)
    elif isinstance(epsilon, tuple) and name.startswith(DEALT) and name.removeprefix(DEALT).isdecimal():
        own = dict(enumerate(epsilon)).get(int(name.removeprefix(DEALT)))
    else:
        own = math.inf if epsilon is None else epsilon
    if not isinstance(own, int | float):
        raise Refused(
            f"The experiment names no epsilon for {wire.shown(name)}: write one for every site into privacy.epsilon, as `tacit"
            " deploy init` does."
        )
    return float(own)


def everybody(experiment: Experiment, site: str, epsilon: float) -> dict[str, float] | None:
    """All sites that a site can know from the experiment, with its own epsilon; None if it is not among them."""
    if experiment.data.name not in OWN_FILES:
        names = [f"{DEALT}{number}" for number in range(experiment.data.clients or 0)]
    else:
        names = list(experiment.privacy.epsilon) if isinstance(experiment.privacy.epsilon, dict) else []
    return dict.fromkeys(names, epsilon) if site in names else None


# `[accept]`: consent by digest (this very experiment) or by settings (anything within a frame).

SECTION_KEYS = (*Experiment.model_fields, *keys())  # what accept.settings may name
OPTIONS = ("aggregate.", "data.", "model.")  # tables whose other keys are the options of the part they name
HELD_ELSEWHERE = ("name", "privacy.epsilon", "privacy.delta", "privacy.delta_share")  # no effect, or held by the limits
MOST_NAME = 100  # characters of an experiment's name: it stands in logs


class Accept(BaseModel):
    """Which experiments may run: those of a digest, or those whose settings are among the allowed ones. Empty, nothing may run.

    `settings` has a value, a list of values, or a least and a largest number for a "section.key"; whatever it does not name must
    have its default. Rows are then read only in the ways of `data` (digests of `[data]`), because whoever may choose how rows are
    read can ask about their values. `code` lists "package.module:name" = SHA-256 of its file.
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


def digest(experiment: Experiment) -> str:
    """The SHA-256 of every key of an experiment, its defaults included: what a site lists to accept this very one."""
    return _hash(experiment.model_dump(mode="json", exclude_none=True))


def data_digest(experiment: Experiment) -> str:
    """The SHA-256 of the `[data]` table, which says how rows are read: where, by which source, with which options.

    A seed that decides which rows a site trains on is part of that: a greeting's count for every seed would name the records.
    """
    data = experiment.data
    chosen = {"seed": experiment.seeds.data} if data.held_out is not None or data.name not in OWN_FILES else {}
    return _hash(data.model_dump(mode="json", exclude_none=True) | chosen)


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


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
    """Refuses what is neither named by digest nor within the allowed settings."""
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
        if isinstance(allowed, Mapping):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            within = number and allowed.get("min", value) <= value <= allowed.get("max", value)
            ends = {"min": "least", "max": "most"}
            words = " and ".join(f"at {ends[end]} {allowed[end]!r}" for end in sorted(allowed))
        else:
            values_allowed = allowed if isinstance(allowed, list) else [allowed]
            within, words = value in values_allowed, " or ".join(map(repr, values_allowed))
        if not within:
            raise Refused(f"The server asks for {name} = {value!r}; the site allows {words}.")
    for name, value in departures(experiment).items():
        if name not in accept.settings:
            raise Refused(f"The server sets {name} = {value!r}, which the site's {BUDGET} does not name.")
    if data_digest(experiment) not in accept.data:
        raise Refused(
            f"The experiment reads rows in a way (digest {data_digest(experiment)} of [data]) that the site's {BUDGET} does not"
            " list in accept.data."
        )


# Nothing that a server sends is code: what an experiment names as "package.module:name" runs only if the site listed it.

PLAIN = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*", re.ASCII)


def _named_code(experiment: Experiment) -> list[str]:
    parts = (experiment.model.name, experiment.aggregate.rule, experiment.data.name, experiment.privacy.kind)
    names = (*parts, experiment.task.kind, experiment.task.loss, experiment.metric.choose)
    return [name for name in names if name is not None and ":" in name]


def refuse_unlisted(listed: Mapping[str, str], experiment: Experiment) -> None:
    """Refuses code that the site does not list, that is not installed there, or whose file is another than the listed one.

    Assumes: the file does not change before it is imported.
    """
    for name in _named_code(experiment):
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
            raise Refused(f"The file of {name!r} is another than the one that the site's budget.toml lists.")


def code_digest(name: str) -> str:
    """The SHA-256 of the file that "package.module:name" comes from; empty where there is none, which no listed hash equals."""
    file = _file(name)
    return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def lines_to_list(listed: Mapping[str, str], experiment: Experiment) -> dict[str, Path]:
    """The lines that `[accept.code]` lacks for an experiment, each with the file that the site's people read before they add it.

    Nothing is imported: whoever looks has not consented yet.
    """
    files = {name: _file(name) for name in _named_code(experiment) if PLAIN.fullmatch(name)}
    hashes = {name: code_digest(name) for name in files}
    return {
        f'"{name}" = "{hashes[name]}"': file
        for name, file in files.items()
        if file is not None and listed.get(name, "").lower() != hashes[name]
    }


def absent(listed: Mapping[str, str], experiment: Experiment) -> list[str]:
    """What an experiment names and the site neither lists nor has: then there is no hash to list yet."""
    names = [name for name in _named_code(experiment) if name not in listed and PLAIN.fullmatch(name)]
    return [name for name in names if not _file(name)]


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
