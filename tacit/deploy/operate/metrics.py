"""`tacit deploy check --metrics`: a server's or a site's numbers in the text format of Prometheus, read off its folder.

It is a command of its own, so that nobody who asks the site anything sees it run. What it says of a site follows from its budget,
its ledger and the verdicts in its log: nothing is counted from rows, and no time is told, because how long training took can depend
on them. It is written for the folder's owner alone (0600); whoever lets others collect it decides so."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tacit import store
from tacit.deploy.operate.certificates import days_left
from tacit.deploy.operate.layout import Federation, open_federation
from tacit.deploy.site import layout
from tacit.deploy.site.layout import LEDGER, LOG, SETTINGS, read_settings, runs
from tacit.deploy.site.limits import read_limits
from tacit.engine.evaluate import scalars
from tacit.engine.run_files import read
from tacit.errors import TacitError
from tacit.privacy.ledger.reader import accounts, at_one_site
from tacit.report.writers.prometheus import gauge, quoted

Sample = tuple[str, Mapping[str, str], float]  # a name, its labels, a number
BEGINS = b"# type tacit_"  # of the numbers, in small letters
VERDICTS = ("answered", "refused", "failed", "lost", "late")
OF_A_ROUND = ("update_norm", "signal_to_noise", "out_of_budget")
OF_A_COHORT = ("cohort", "answered", "uplink_bytes", "downlink_bytes")  # traffic tells how many there were


def text_of(folder: Path) -> str:
    """The numbers of a site's folder (one with `site.toml`), or of a federation's: its server's. Raises: BadInput.

    Guarantee: nothing is charged, released, started or asked; a site's rows are not opened.
    """
    found = _of_site(folder) if (folder / SETTINGS).exists() else _of_server(open_federation(folder))
    lines, said = [], set[str]()
    for name, labels, value in found:
        told = gauge(name)
        lines += [] if told in said else [f"# TYPE {told} gauge"]
        said.add(told)
        words = ",".join(f'{key}="{quoted(text)}"' for key, text in labels.items())
        lines.append(f"{told}{{{words}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def write(folder: Path, out: Path) -> None:
    """Writes the numbers into a file, for its owner only. Raises: BadInput, also where another file lies there; OSError."""
    store.refuse_foreign(out, begins=BEGINS)
    layout.write(out, text_of(folder).encode())


def _of_site(folder: Path) -> Iterator[Sample]:
    limits, site = read_limits(folder), {"site": str(read_settings(folder)["name"])}
    yield f"epsilon_limit_per_{limits.unit}", site, limits.epsilon
    yield f"delta_limit_per_{limits.unit}", site, limits.delta
    yield from _ledger(folder / LEDGER, site)
    yield "runs_agreed", site, len(runs(folder))
    for verdict, count in _verdicts(folder / LOG).items():
        yield "messages", site | {"verdict": verdict}, count
    yield from _certificate(folder / "ca.crt", site)


def _ledger(file: Path, site: dict[str, str]) -> Iterator[Sample]:
    known = at_one_site(accounts(file) if file.exists() and file.stat().st_size else [])
    for unit, (epsilon, delta) in sorted(known.items()):
        yield f"epsilon_sealed_per_{unit}", site, epsilon
        yield f"delta_sealed_per_{unit}", site, delta


def _verdicts(log: Path) -> dict[str, int]:
    counted: Counter[str] = Counter()
    if log.exists():
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    counted[str(json.loads(line)["verdict"])] += 1
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue
    return {verdict: counted[verdict] for verdict in VERDICTS}


def _of_server(federation: Federation) -> Iterator[Sample]:
    named = {"federation": federation.name}
    yield "sites", named, len(federation.sites)
    yield from _certificate(federation.server / "server.pem", named)
    if not (federation.results / "experiment.toml").exists():
        return
    files = read(federation.results)
    train, privacy = files.experiment.train, files.experiment.privacy
    yield "rounds_planned", named, train.rounds
    yield "rounds", named, len(files.rounds)
    yield "finished", named, float(files.summary is not None)
    if not files.rounds:
        return
    last = files.rounds[-1]
    told = scalars(last, unit=privacy.unit_kept)
    secret = files.experiment.secret_cohorts
    shown = [files.metric, *(key for key in told if key.startswith("epsilon_")), *OF_A_ROUND]
    shown += [] if secret else OF_A_COHORT
    yield from ((key, named, float(told[key])) for key in shown if isinstance(told.get(key), int | float))
    if not secret:
        away = last.get("absent") or {}
        yield from (("site_absent", named | {"site": name}, float(name in away)) for name in federation.sites)


def _certificate(path: Path, labels: dict[str, str]) -> Iterator[Sample]:
    try:
        yield "certificate_days_left", labels, math.floor(days_left(path))
    except TacitError:
        yield "certificate_days_left", labels, -1


def _number(value: float) -> str:
    """A number as Prometheus reads it; an epsilon keeps all its digits.

    >>> _number(3), _number(2.5), _number(float("inf")), _number(float("nan"))
    ('3', '2.5', '+Inf', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) else repr(float(value))
