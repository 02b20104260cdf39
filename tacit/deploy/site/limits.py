"""`budget.toml`: what a site allows, how a request is held against it, and the folder of a new site. No server sees or changes it.

`Limits` is the one list: a limit is a field with its check, the words of its refusal and its line of the file. `allow` is the one
door: it reads and applies them before every answer. A refusal repeats what the server sent and what the site's own file says."""

import getpass
import hashlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit import store
from tacit.deploy.site import consent, layout
from tacit.deploy.site.consent import OWN_FILES, Accept, read_experiment
from tacit.deploy.site.layout import BUDGET, called, wording
from tacit.errors import BadInput, Refusal, Refused
from tacit.experiment import Experiment
from tacit.experiment.file import dumps
from tacit.experiment.privacy import KINDS
from tacit.types import Budget, Unit


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is asked of a site, as far as it is known by now; what is None is held once it is known."""

    experiment: Experiment | None = None
    epsilon: float | None = None  # that the roster, or the agreement, has for this site
    sites: int | None = None
    runs: int | None = None  # that the site would have agreed to
    size: int | None = None  # bytes of the question
    steps: int | None = None  # of a round, on the site's own rows
    parameters: int | None = None


Check = Callable[[Any, Demand], None]  # gets a limit's value and a demand, and raises Refused


def limit(default: Any, *checks: Check, line: str = "", **rules: Any) -> Any:
    """A limit: its default, its checks, the comment of its line in a new budget.toml, and pydantic's rules."""
    return Field(default, description=line, json_schema_extra=cast(Any, {"checks": checks}), **rules)


def most(words: str, number: str, *, kind: Refusal = Refusal.NEVER) -> Check:
    """The check of a number: `number` says where a demand has it, `words` what the server does with it, `kind` whether it may ask
    again later."""

    def check(limit: float, asked: Demand) -> None:
        value: Any = asked
        for name in number.split("."):
            value = None if value is None else getattr(value, name)
        if value is not None and value > limit:
            said, allowed = (each if isinstance(each, int) else f"{each:g}" for each in (value, limit))
            raise Refused(f"The server {words.format(said)}; the site allows {allowed}.", kind)

    return check


def _held_consent(accept: Accept, asked: Demand) -> None:
    if (experiment := asked.experiment) is None:
        return
    if experiment.privacy.kind not in KINDS:
        raise Refused("The kind of privacy is not Tacit's own: its price is nobody's theorem here.")
    consent.refuse_unknown(accept, experiment)
    consent.refuse_unlisted(accept.code, experiment)


def _held_protection(trial: bool, asked: Demand) -> None:
    from tacit.privacy.plan import kind_of  # loads torch

    if asked.experiment is None or trial:
        return
    kind_of(asked.experiment).refuse_at_site(asked.experiment)
    if asked.experiment.run.randomness == "seeded":
        raise Refused(
            "This experiment draws its noise from a seed that the server knows, so nothing would be protected from it: "
            'the site wants run.randomness = "os".'
        )


def _held_unit(unit: Unit, asked: Demand) -> None:
    if asked.experiment is not None and asked.experiment.privacy.unit_kept != unit:
        raise Refused(
            f"The server asks for a budget per {asked.experiment.privacy.unit_kept}; the site's is per {unit}."
        )


Number = Annotated[float, Field(strict=True)]  # no text, and no true for 1
Count = Annotated[int, Field(strict=True, ge=1)]
MOST_NOISE = 1e12  # of a clip and of a noise multiplier: eleven times their product is far within float32


class Updates(BaseModel):
    """`[updates]`: how a site protects the updates that it sends in jobs of other frameworks (tacit/deploy/site/updates.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip: Number = Field(gt=0, le=MOST_NOISE)
    noise_multiplier: Number = Field(gt=0, le=MOST_NOISE)
    rounds: Count  # of one job, repeated ones included: their joint price is reserved before the first
    delta_share: Number = Field(1.0, gt=0, le=1)  # of delta, for one job


class Limits(BaseModel):
    """What a site allows, in the order in which it is held against a demand. A new limit is one entry here. What it limits is a
    field of `Demand`, or a setting of its experiment; a new fact is one more field there, and one `hold(limits, Demand(fact=...))`
    where the site knows it: in site.py, before `replies.bind`, so that a refused question costs nothing. No fact may follow from
    the content of the rows: a refusal would tell it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accept: Accept = limit(Accept(), _held_consent)
    trial: bool = limit(
        False,
        _held_protection,
        line="true also lets in seeded noise, which protects nothing from a server that knows the seed",
        strict=True,
    )
    epsilon: Number = limit(..., most("asks for epsilon {}", "epsilon"), line="over all runs together")
    delta: Number = limit(..., most("asks for delta {}", "experiment.privacy.run_delta"))
    unit: Unit = limit(
        "record", _held_unit, line="what may come or go: one record, one person with all rows, or the whole site"
    )
    most_rounds: Count = limit(10_000, most("asks for {} rounds", "experiment.train.rounds"))
    most_parameters: Count = limit(20_000_000, most("asks for {} parameters", "parameters"), line="of a model")
    most_steps: Count = limit(
        100_000,
        most("asks for {} local epochs", "experiment.train.local_epochs"),
        most("asks for {} local steps", "experiment.train.steps"),
        most("asks for {} local steps", "steps"),  # which for epochs only the site knows
        line="of local training in a round",
    )
    most_batch: Count = limit(
        65_536,
        most("asks for {} examples in a batch", "experiment.train.batch_size"),
        most("asks for {} examples at a time", "experiment.train.physical_batch"),
        most("asks for {} rows of a person at a time", "experiment.privacy.rows_per_person"),
        line="examples",
    )
    most_views: Count = limit(64, most("asks for {} views of a record", "experiment.train.views"), line="of a record")
    most_clients: Count = limit(
        10_000,
        most("asks for {} clients", "experiment.data.clients"),
        most("names {} sites", "sites"),
        line="sites of a run",
    )
    most_bytes: Count = limit(1 << 31, most("sends a question of {} bytes", "size"), line="of one question")
    most_runs: Count = limit(1_000, most("asks for {} runs of this site", "runs"), line="that leave a folder here")
    answer_seconds: Number = limit(
        0.0,
        line="every answer to a round leaves so long after its question: 60 hides how long training took",
        ge=0,
        allow_inf_nan=False,
    )
    updates: Updates | None = limit(None)

    @property
    def budget(self) -> Budget:
        """Raises: BadInput where epsilon and delta are no budget."""
        return Budget(self.epsilon, self.delta, self.unit)

    @property
    def digest(self) -> str:
        """The SHA-256 of every limit: what was accepted under other ones has to be accepted anew."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def hold(limits: Limits, asked: Demand) -> None:
    """Refuses what goes beyond the limits, as far as it is known. Raises: Refused, naming the first thing that is not allowed."""
    for name, field in type(limits).model_fields.items():
        for check in cast(Any, field.json_schema_extra)["checks"]:
            check(getattr(limits, name), asked)


@dataclass(frozen=True)
class Allowed:
    """An experiment that the site's files allow as they are at this moment; `allow` makes it."""

    site: Path
    text: str
    experiment: Experiment
    limits: Limits
    settings: dict[str, Any]


def allow(site: Path, text: str, limits: Limits, **known: Any) -> Allowed:
    """Holds an experiment, and what else is `known` of a demand, against budget.toml and site.toml. Raises: Refused, BadInput."""
    experiment, settings = read_experiment(text), layout.read_settings(site)
    hold(limits, Demand(experiment=experiment, **known))
    device = experiment.run.device
    if device not in ("cpu", settings.get("device")):
        raise Refused(f"The experiment wants the device {device[:40]!r}, which the site's site.toml does not name.")
    return Allowed(site, text, experiment, limits, settings)


def read_limits(site: Path) -> Limits:
    """`budget.toml` as it is now. Raises: BadInput, naming the file and the key that is not understood."""
    path = site / BUDGET
    values: dict[str, Any] = {}
    try:
        values = tomllib.loads(path.read_text("utf-8"))
        limits = Limits.model_validate(values)
        limits.budget  # noqa: B018 - checks the numbers
        return limits
    except OSError as error:
        who = f"user {getpass.getuser()}" if isinstance(error, PermissionError) else "this site"
        raise BadInput(f"The budget file {path} cannot be read by {who} ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}.") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except ValidationError as error:
        raise BadInput(f"{path}: {wording(error, Limits, values)}") from None


# A new site's folder.

TEMPLATE = """\
# What this site allows. It is read and applied before every answer; nobody but the site changes it.
# proposal.toml is the experiment that the server proposes, in full: read it before you accept its digest below.
{lines}

[accept]
experiments = ["{digest}"]  # {name}
# Instead of digests, the settings an experiment may have. Whatever is not named must have its default, and rows are read in the
# listed ways only:
# data = ["{data}"]
# [accept.settings]
{settings}
# Code of your own that an experiment may name ("package.module:name"), with the SHA-256 of its file. The package must be installed
# here; `tacit deploy check` on this folder then prints the line, as in
# [accept.code]
# "hospital.rules:clipped_median" = "64 hexadecimal digits"
"""


def make_site(folder: Path, experiment: Experiment, *, name: str, epsilon: float) -> None:
    """Writes a site's folder for one experiment: site.toml, budget.toml and proposal.toml anew, a ledger where there is none.

    The budget file accepts this experiment by its digest and nothing else.
    """
    layout.make_folder(folder)
    own = experiment.data.name in OWN_FILES
    settings = {"name": name} | ({"data": f"records.{experiment.data.name}"} if own else {})
    weights = experiment.model.options().get("path")
    settings |= {"model": Path(weights).name} if isinstance(weights, str) else {}
    where = [what for what, there in (("rows", own), ("model's weights", weights)) if there]
    whose = f", and where its {' and its '.join(where)} are (relative to this folder)" if where else ""
    said = {"epsilon": epsilon, "delta": experiment.privacy.delta, "unit": experiment.privacy.unit_kept}
    said |= {"trial": experiment.run.randomness == "seeded", "most_rounds": experiment.train.rounds}
    frame = dumps({"accept.settings": {key: [value] for key, value in consent.departures(experiment).items()}})
    budget = TEMPLATE.format(
        lines="\n".join(_line(key, said) for key in Limits.model_fields if key not in ("accept", "updates")),
        digest=consent.digest(experiment),
        name=called(experiment.name),
        data=consent.data_digest(experiment),
        settings="\n".join(f"# {line}" for line in frame.splitlines() if " = " in line),
    )
    layout.write(folder / layout.SETTINGS, f"# Who this site is{whose}.\n{dumps(settings)}".encode())
    layout.write(folder / BUDGET, budget.encode())
    layout.write(folder / layout.PROPOSAL, experiment.toml().encode())
    store.create(folder / layout.LEDGER, b"")


def _line(key: str, said: dict[str, Any]) -> str:
    field = Limits.model_fields[key]
    text = dumps({key: said.get(key, field.default)}).strip()
    return f"{'' if key in said else '# '}{text}{f'  # {field.description}' if field.description else ''}"
