"""What `tacit attack` and `tacit audit` refuse at once, before anything that trains is loaded, which takes seconds.

Nothing here imports torch. What only an attack or a mechanism itself can tell (whether a value makes sense to it, whether a run has
canaries) is refused by them, as before.
"""

import ast
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tacit import check, plugin
from tacit.audit import words
from tacit.errors import BadInput
from tacit.experiment import Experiment
from tacit.experiment.file import shipped
from tacit.experiment.toml import parse_value

ATTACKS = "tacit.attacks"
DEPLOYED = ("federation.toml", "site.toml")


def attack(name: str, source: str | None, settings: Sequence[str], *, chosen: Sequence[str], jobs: int | None) -> None:
    """Refuses an attack that is none, options that it has not, and an experiment that cannot be read. Raises BadInput."""
    plugin.refuse_unknown(ATTACKS, name, key="the attack")
    refuse_options(name, wanted(chosen))
    if jobs is not None:
        check.at_least(1, **{"--jobs": jobs})
    simulated(source or "digits", settings)


def audit(
    names: Sequence[str],
    settings: Sequence[str],
    *,
    mechanism: bool,
    plant: str | None,
    repeat: int | None,
    trainers: Sequence[str],
    seed: int,
) -> None:
    """Refuses what cannot be audited by its name, its options or its experiment. Raises BadInput."""
    if not mechanism:
        _folders(names, {"set": settings, "plant": plant, "repeat": repeat, "trainer": trainers})
        return
    if len(names) > 1:
        raise BadInput("The mechanism of one experiment is audited at a time: name one.")
    if repeat is not None:
        check.at_least(1, **{"--repeat": repeat})
    check.at_least(0, **{"--seed": seed})
    for trainer in trainers:
        check.one_of(words.TRAINERS, **{"--trainer": trainer})
    if plant is not None:
        words.noise_factor(plant)
    Experiment.load(*(names or ["digits"]), settings=tuple(settings))


def _folders(names: Sequence[str], options: dict[str, object]) -> None:
    """Refuses what is no folder of a run or of a site, and options that only a mechanism has."""
    for name in names:
        if name in shipped() or Path(name).is_file():
            raise BadInput(f"{name} is an experiment: add --mechanism, or name the folder of a run with canaries.")
        if not Path(name).is_dir():
            raise BadInput(f"There is no folder {name}: name that of a run or of a site with canaries.")
    if not names:
        raise BadInput(
            "Say what to audit: `tacit audit FOLDER` the canaries of a run or a site, or `tacit audit EXPERIMENT --mechanism`"
            " noise, clip and rate as they would run."
        )
    for flag, value in options.items():
        if value:
            raise BadInput(
                f"A run is audited as it was: leave out --{flag}, or add --mechanism to audit an experiment."
            )
    if len(names) > 1 and any((Path(name) / "site.toml").exists() for name in names):
        raise BadInput("A site audits itself, and by itself: name one.")


def refuse_options(name: str, options: Iterable[str]) -> None:
    """Refuses an option that a shipped attack has not; of somebody's own attack the attack itself tells. Raises BadInput.

    >>> refuse_options("membership", ["model"])
    Traceback (most recent call last):
    tacit.errors.BadInput: Unknown key 'with.model'. Did you mean 'with.models'?
    """
    if ":" in name:
        return
    known = _fields(name)
    for key in options:
        if known and key not in known:
            raise BadInput(plugin.unknown(key, table="with", known=known))


def _fields(name: str) -> list[str]:
    """The options of a shipped attack, read off its file: the annotated names of its dataclass."""
    part = name.replace("-", "_")
    spec = find_spec(ATTACKS)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        tree = ast.parse((Path(folder) / f"{part}.py").read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == part:
                return [
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                ]
    return []


def simulated(source: str, settings: Sequence[str]) -> Experiment:
    """The experiment of a name, a TOML file or a run's folder. Raises BadInput for one that belongs to a deployment."""
    path = Path(source)
    if path.exists():
        for place in (path, *path.resolve().parents):
            for file in DEPLOYED:
                if (place / file).is_file():
                    raise BadInput(
                        f"{source} belongs to a deployment ({place / file}): attacks look at clients' rows, which only a simulation"
                        " has; name a simulation's experiment."
                    )
        if (path / "experiment.toml").is_file():
            path = path / "experiment.toml"
            source = str(path)
    return Experiment.load(source, tuple(settings))


def wanted(words: Sequence[str]) -> dict[str, Any]:
    """The options of an attack, from KEY=VALUE. Raises BadInput.

    >>> wanted(["models=8", "classes=[0, 1]"])
    {'models': 8, 'classes': [0, 1]}
    """
    options = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key.isidentifier() or not text:
            raise BadInput(f"Expected an option of the attack as --with key=value, got {word!r}.")
        options[key] = parse_value(text)
    return options
