"""What a site's people have consented to, held against what a server asks, before anything of it is built or imported.

Consent is by digest (this very experiment) or by settings (anything within a frame); then come the numbers that are privacy,
and those that are work or memory. A refusal repeats what the server sent and what the site's own file says of it, nothing of
the rows."""

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tacit.deploy.site.layout import BUDGET
from tacit.deploy.site.limits import Accept, Limits, Roster
from tacit.deploy.site.rows import OWN_FILES
from tacit.errors import Refused
from tacit.experiment import Experiment
from tacit.experiment.extras import NOBODY_MALICIOUS
from tacit.experiment.privacy import KINDS
from tacit.privacy.plan import kind_of

# Nothing that a server sends is code: what an experiment names as "package.module:name" runs here only if the site
# listed it.

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


HELD_ELSEWHERE = (
    "name",
    "privacy.epsilon",
    "privacy.delta",
    "privacy.delta_share",
)  # no effect, or held by the limits themselves
MOST_NAME = 100  # characters of an experiment's name: it stands in logs


def digest(experiment: Experiment) -> str:
    """The SHA-256 of every key of an experiment, its name included: what a site's people list to accept this very experiment.

    Guarantee: two experiments with one digest have the same value for every key. What an experiment leaves unsaid has its
    default, and counts as if it were said; only keys that are None are left out.

    >>> digest(Experiment()) == digest(Experiment(run={"seed": 0})) != digest(Experiment(run={"device": "cuda"}))
    True
    """
    return _hash(experiment.model_dump(mode="json", exclude_none=True))


def data_digest(experiment: Experiment) -> str:
    """The SHA-256 of the `[data]` table, which says how rows are read: where, by which source, with which options.

    Where a seed decides which rows a site trains on (rows held out, or dealt out), it is part of that, though it be `run.seed`: the
    answer to a greeting counts them, and a count for every seed would name the records.
    """
    data = experiment.data
    chosen = {"seed": experiment.seeds.data} if data.held_out is not None or data.name not in OWN_FILES else {}
    return _hash(data.model_dump(mode="json", exclude_none=True) | chosen)


def departures(experiment: Experiment) -> dict[str, Any]:
    """Every setting that is not the default, as {"section.key": value}: what consent by settings must name.

    Left out are `[data]`, which is named as a whole by its digest, and what has no effect or is held by the limits themselves
    (name, epsilon, delta).

    >>> departures(Experiment(train={"rounds": 3}, run={"seed": 1}))
    {'train.rounds': 3, 'run.seed': 1}
    """
    values, usual = experiment.model_dump(mode="json"), Experiment().model_dump(mode="json")
    changed = {
        f"{section}.{key}": value
        for section, table in values.items()
        if isinstance(table, dict) and section != "data"
        for key, value in table.items()
        if value != (usual[section] or {}).get(key)
    }
    return {key: value for key, value in changed.items() if key not in HELD_ELSEWHERE}


def refuse_beyond(limits: Limits, experiment: Experiment) -> None:
    """Refuses an experiment that the budget file does not allow, before anything of it is imported, opened or built.

    Guarantee: what passes was accepted by digest or by settings, names no code but what is listed under the SHA-256 of its
    file, has one of Tacit's own kinds of privacy, noise that nobody else can draw again (unless `trial`), and a unit, a delta
    and sizes within the limits. The epsilon is not held here: the roster has it (`join`).

    Raises: Refused, naming the first thing that is not allowed.

    >>> refuse_beyond(Limits(epsilon=1.0, delta=1e-5), Experiment())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacit.errors.Refused: The experiment ... is not among those that the site's budget.toml accepts.
    """
    privacy = experiment.privacy
    if experiment.attack is not None:
        raise Refused(NOBODY_MALICIOUS)
    if privacy.kind not in KINDS:
        raise Refused(
            "The experiment names a kind of privacy that is not Tacit's own: its price is nobody's theorem here."
        )
    _refuse_unknown(limits.accept, experiment)
    refuse_unlisted(limits.accept.code, experiment)
    if not limits.trial:
        kind_of(experiment).refuse_at_site(experiment)
    if experiment.run.randomness == "seeded" and not limits.trial:
        raise Refused(
            "This experiment draws its noise from a seed that the server knows, so nothing would be protected from it: "
            'the site wants run.randomness = "os".'
        )
    if privacy.unit_kept != limits.unit:
        raise Refused(f"The server asks for a budget per {privacy.unit_kept}; the site's is per {limits.unit}.")
    if privacy.run_delta > limits.delta:
        raise Refused(f"The server asks for delta {privacy.run_delta:g}; the site allows {limits.delta:g}.")
    _refuse_large(limits, experiment)


def _refuse_large(limits: Limits, experiment: Experiment) -> None:
    """Numbers that would be work or memory: each has its limit before anything is built."""
    train, data = experiment.train, experiment.data
    for asked, most, what in (
        (train.rounds, limits.most_rounds, "rounds"),
        (train.local_steps, limits.most_steps, "local steps"),
        (train.local_epochs, limits.most_steps, "local epochs"),
        (train.batch_size, limits.most_batch, "examples in a batch"),
        (train.physical_batch, limits.most_batch, "examples at a time"),
        (train.views, limits.most_views, "views of a record"),
        (train.shift, limits.most_batch, "pixels of shift"),
        (data.clients, limits.most_clients, "clients"),
    ):
        if asked is not None and asked > most:
            raise Refused(f"The server asks for {asked} {what}; the site allows {most}.")


def refuse_steps(limits: Limits, steps: int) -> None:
    """Refuses more local steps of a round than the site allows. Raises: Refused.

    For a number that only the site knows: local epochs are as many steps as there are batches in its rows.
    """
    if steps > limits.most_steps:
        raise Refused(f"The server asks for {steps} local steps; the site allows {limits.most_steps}.")


def refuse_parameters(limits: Limits, parameters: int) -> None:
    """Refuses a model of more parameters than the site allows. Raises: Refused."""
    if parameters > limits.most_parameters:
        raise Refused(f"The server asks for {parameters} parameters; the site allows {limits.most_parameters}.")


def refuse_device(experiment: Experiment, settings: dict[str, Any]) -> None:
    """Refuses any device but the CPU and the one that the site's own site.toml names. Raises: Refused.

    >>> refuse_device(Experiment(run={"device": "cuda"}), {"name": "north", "device": "cuda"})
    """
    device = experiment.run.device
    if device not in ("cpu", settings.get("device")):
        raise Refused(f"The experiment wants the device {device[:40]!r}, which the site's site.toml does not name.")


def refuse_crowd(limits: Limits, roster: Roster) -> None:
    """Refuses a roster of more sites than the site allows in a run (`most_clients`). Raises: Refused."""
    if len(roster.names) > limits.most_clients:
        raise Refused(f"The server names {len(roster.names)} sites; the site allows {limits.most_clients}.")


def _refuse_unknown(accept: Accept, experiment: Experiment) -> None:
    """Refuses what is neither named by digest nor within the allowed settings."""
    mark = digest(experiment)
    if mark in accept.experiments:
        return
    if not accept.settings:
        raise Refused(
            f"The experiment {_name(experiment)} (digest {mark}) is not among those that the site's {BUDGET} accepts."
        )
    values = experiment.model_dump(mode="json")
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


def _name(experiment: Experiment) -> str:
    return experiment.name if experiment.name.isprintable() and len(experiment.name) <= MOST_NAME else "without a name"


def _hash(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
