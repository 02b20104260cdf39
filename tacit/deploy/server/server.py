"""The ServerApp: who is here, what is agreed, then the same loop as the simulator with the sites as its trainer."""

import json
import logging
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.logger import FLOWER_LOGGER

from tacit import store
from tacit.algorithms.encrypted import Encrypted
from tacit.deploy.operate.connections import announce
from tacit.deploy.operate.processes import GRACE_SECONDS, end_with_parent
from tacit.deploy.server.gather import ANSWER_BYTES
from tacit.deploy.server.opening import Sites
from tacit.deploy.server.queries import AtSites, known, learn, was_asked, with_ranges
from tacit.deploy.server.registration import LOOK_SECONDS, Call, Registration, call_of, registered_sites
from tacit.deploy.server.trainer import OverGrid, Status
from tacit.deploy.site.agreement import record_of, terms_of
from tacit.deploy.site.consent import refuse_undeployable, refuse_unpinned
from tacit.deploy.site.keys import seals_of
from tacit.deploy.site.requests import Roster, sent
from tacit.deploy.site.rows import public_rows, shape
from tacit.engine.assemble import Parts, assemble
from tacit.engine.history import History, finish, note_clients
from tacit.engine.ledgers import open_ledger
from tacit.engine.loop import BudgetTracker, Observer, loop
from tacit.engine.queries import columns_asked, describe, evaluate_at_clients, judged_by, query_of
from tacit.engine.run_folder import Folder, open_folder
from tacit.errors import BadInput, BudgetExhausted, RunExists, TacitError
from tacit.experiment import Experiment
from tacit.experiment.extras import EVALUATION, shares
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.wiring import descent_of
from tacit.report.closing import facts
from tacit.report.live import Pages, page_meanwhile
from tacit.report.page import write_page
from tacit.report.progress import round_line
from tacit.training.sgd import Trained
from tacit.types import Client, Message, Private, Raw, State
from tacit.wire import all_finite, unpack

# What arrives from a site is held against what an honest one would send: only the values of its tensors may differ.

CLOSE = 1e-6  # relative: one formula on two machines
NUMBER_BYTES = 8  # of the widest number that a parameter becomes
LARGEST = 1e25  # beyond, weights could take a sum out of float32


def honest(parts: Parts, client: Client, received: Message, round: int = 0) -> Message | None:
    """An honest client's answer to what it received, with zeros for the values that only it knows; None where the algorithm judges
    every message itself (central DP, encrypted sums).
    """
    algorithm, zeros = parts.algorithm, torch.zeros_like(parts.params)
    if algorithm.tolerates_invalid:
        return None
    rate, descent = parts.experiment.train.learning_rate, descent_of(parts.experiment).for_round(round)
    noises = parts.plan.update_noise(parts.population.sizes, learning_rate=rate, descent=descent)
    if noises is None:
        return algorithm.release(Trained(Raw(zeros)), client, received)
    return algorithm.release(Trained(Private(zeros, float(noises[client.index]))), client, received)


def answer_bytes(parts: Parts) -> int:
    """No honest answer of a run is longer: a number for each parameter, or a sealed report, and what stands beside them."""
    algorithm = parts.algorithm
    groups = algorithm.groups.values() if isinstance(algorithm, Encrypted) else ()
    return ANSWER_BYTES + max([NUMBER_BYTES * parts.params.numel(), *(group.seal.report_bytes for group in groups)])


def oddity(parts: Parts, received: Message, index: int, raw: bytes, round: int = 0) -> str:
    """What no honest site would have sent in an answer to `received`, in words; empty where all is in order. Raises nothing.

    What passes may still be a lie, but it has the form and the facts of an honest answer, and no sum of such answers overflows.
    """
    client = parts.population[index]
    like = honest(parts, client, received, round)
    if like is None:
        return ""
    try:
        message = unpack(raw)
    except BadInput as error:
        return str(error)
    if message.sender != client.id:
        return "it answered in another's name"
    if _shapes(message) != _shapes(like):
        return f"it sent {_words(message)} where {_words(like)} belongs"
    rate, descent = parts.experiment.train.learning_rate, descent_of(parts.experiment).for_round(round)
    longest = parts.plan.longest(index, parts.population.sizes, received.tensors["params"], rate=rate, descent=descent)
    most = min(LARGEST, longest * (1 + CLOSE))
    for name, tensor in message.tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            return f"it sent a {name} that is not finite"
        if tensor.is_floating_point() and tensor.numel() and float(tensor.abs().max()) > most:
            return f"it sent a {name} that is larger than any honest one"
    if set(message.facts) != set(like.facts) or not all(_same(message.facts[k], like.facts[k]) for k in like.facts):
        return "it states other facts about itself than were agreed"
    return ""


def _shapes(message: Message) -> dict[str, tuple[Any, Any]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in message.tensors.items()}


def _words(message: Message) -> str:
    parts = [f"{name[:40]} of {list(tensor.shape)[:4]}" for name, tensor in sorted(message.tensors.items())[:3]]
    return " and ".join(parts) or "nothing"


def _same(found: object, wanted: object) -> bool:
    if type(found) is float and type(wanted) is float:
        return found == wanted or math.isclose(found, wanted, rel_tol=CLOSE)
    return type(found) is type(wanted) and found == wanted


# What the server says while it runs: `flwr run --stream` shows it.


def observer(experiment: Experiment) -> Observer:
    return lambda record: print(round_line(record, experiment), flush=True)


def ending(history: History) -> None:
    """Writes the report's page, and says what came out, where it is, and what was promised; a page that fails stops nothing."""
    lines = [f"{name}: {value}" for name, value in facts(history.summary).items()]
    page = history.out / "report.html"
    try:
        write_page([history.out], page)
        lines.append(f"report: {page}")
    except TacitError as error:
        lines.append(f"no report page: {error}")
    print("\n".join([*lines, history.sentence]), flush=True)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    return not (isinstance(record.exc_info, tuple) and isinstance(record.exc_info[1], TacitError))


def in_flowers_words(error: TacitError) -> str:
    """A refusal with the options of `tacit deploy up` as those of `flwr run`.

    >>> in_flowers_words(TacitError("Go on with --resume."))
    "Go on with --run-config 'resume=true'."
    """
    return re.sub("--(resume|force)", r"--run-config '\1=true'", str(error))


KEEP_SECONDS = 60.0  # for the sites to keep the model at the end
LEAVE_SECONDS = 3 * GRACE_SECONDS
SITES = "sites.json"


def server_app(experiment: Path | Experiment) -> ServerApp:
    """A ServerApp that runs an experiment with the sites of its run config, and writes the report's page at the end."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        end_with_parent()
        FLOWER_LOGGER.addFilter(_is_no_refusal)  # no traceback below a refusal that is one sentence
        try:
            call = call_of(context.run_config)
            chosen = experiment if isinstance(experiment, Experiment) else Experiment.load(experiment)
            with page_meanwhile(call.out, observer(chosen), opened=False) as observe:
                history = serve(grid, chosen, call, observe)
            ending(history)
        except TacitError as error:
            print(f"The run stopped: {in_flowers_words(error)}", flush=True)
            raise

    return app


def serve(grid: Grid, experiment: Experiment, call: Call, observe: Observer | None = None) -> History:
    """Runs the experiment with the sites that answer through `grid`; the files are in `call.out`, as of a simulation.

    Guarantee: the server's own ledger is charged before a site is asked, and every site charges its own before it answers. From one
    seed and the same rows the run reaches the model of a simulation. Raises: BadInput, RunExists, or TacitError naming the sites
    that stopped it and why; such a run can be resumed, and what was charged stays spent.
    """
    refuse_undeployable(experiment)
    refuse_unpinned(experiment)
    status = Status(time.time(), call.sites)
    folder = _open(experiment, call)
    try:
        status.wait(folder, call.sites)
        Pages(folder.path).begin()
        history = _serve(grid, experiment, call, folder, status, observe or (lambda record: None))
        status.write(folder, "finished", history.summary["stopped"])
        return history
    except SystemExit:  # Flower ends a process whose SuperLink is gone; the server after it has the word
        raise
    except BaseException as error:
        told = isinstance(error, KeyboardInterrupt)
        status.write(folder, "failed", "The server was told to stop." if told else str(error) or type(error).__name__)
        raise
    finally:
        folder.close()


def _open(experiment: Experiment, call: Call) -> Folder:
    ends = time.monotonic() + LEAVE_SECONDS
    while True:
        try:
            return open_folder(call.out, experiment, resume=call.resume, force=call.force)
        except RunExists:
            if not call.resume or time.monotonic() > ends:
                raise
            time.sleep(LOOK_SECONDS)


def _serve(
    grid: Grid, experiment: Experiment, call: Call, folder: Folder, status: Status, observe: Observer
) -> History:
    rows = public_rows(experiment)
    judged_by(experiment, rows)  # a metric or a column that cannot be asked for is refused before anybody is greeted
    columns_asked(experiment, rows)
    nodes, facts = registered_sites(grid, experiment, call, tell=partial(status.wait, folder))
    roster = _roster(experiment, call.sites, facts, folder)
    population = roster.population(shape(rows))
    text, sites = experiment.toml(), Sites()
    where = {"run": folder.run, "site": None, "text": text, "roster": roster.record()}
    seals = seals_of(experiment, call.keys, **where, opening=sites.opening, legs=sites.legs)
    parts = assemble(experiment, rows, population, place="server", seals=seals)
    folder.write("experiment.toml", parts.ruled.toml().encode())
    everybody = (parts.population[index] for index in range(len(parts.population)))
    terms = {client.index: terms_of(parts, client, epsilon=client.budget.epsilon) for client in everybody}
    parts.algorithm.init(parts.params)  # a rule that cannot weigh these sites says so before they are asked to agree
    # not before: declarations that no run can be made of must not outlive the start that they ended
    store.write(folder.path / SITES, json.dumps(roster.record(), indent=1).encode())
    indices = {name: index for index, name in enumerate(roster.names)}
    here = {indices[name]: node for name, node in nodes.items()}
    ledger = open_ledger(parts, folder)
    note_clients(parts, ledger, folder, simulated=False)
    common = {"kind": "agree", "run": folder.run, "experiment": parts.experiment.toml(), "roster": roster.record()}
    common |= {"releases": _releases(parts, ledger, folder)}
    least = 1 if parts.algorithm.tolerates_invalid else experiment.train.min_clients
    query, told = query_of(parts.experiment, parts.dataset, parts.plan, population), known(folder)
    common |= {"ranges": record_of(told.ranges)} if told else {}
    registration = Registration(grid, roster.names, terms, common, call.join_seconds)
    registration.agree(here)
    if query is not None and told is None:
        told = learn(parts, ledger, folder, query, AtSites(grid, here, call.round_seconds), least=least)
        common["ranges"] = record_of(told.ranges)
        registration.agree(here)  # once more: now to these ranges
    if told is not None:
        parts = with_ranges(parts, told, seals)
        note_clients(parts, ledger, folder, simulated=False)
    patience, odd, most = call.round_seconds, partial(oddity, parts), answer_bytes(parts)
    announce(call.keys, most)
    trainer = OverGrid(grid, folder, here, roster.names, patience, least, registration, odd, most)
    trainer.status = None if parts.plan.sampler.charges_all else status  # who takes part is a secret of central DP
    sites.trainer, trainer.framing = trainer, sites.groups
    status.write(folder, "running", f"{len(here)} of {len(roster.names)} sites are here")
    describe(parts, ledger, folder, asking=AtSites(grid, trainer.nodes, patience))
    state, stopped = _trained(parts, ledger, folder, trainer, observe)
    if EVALUATION in shares(experiment):
        trainer.away()  # who is back is let in, and asked
    asking = AtSites(grid, trainer.nodes, patience, sent(state.result.cpu()))
    at_clients = evaluate_at_clients(parts, ledger, folder, state.result, asking=asking)
    if at_clients is not None:
        at_clients |= {"missing": asking.missing}
        trainer.spent |= asking.spent
    history = finish(parts, ledger, folder, state.result, stopped, at_clients=at_clients)
    kept = registration.hand_out(trainer.nodes, sent(state.result.cpu()), seconds=min(patience, KEEP_SECONDS))
    summary = history.summary | {"sites": {"epsilon": trainer.spent, "absent": trainer.absent, "have_the_model": kept}}
    store.write(folder.path / "summary.json", json.dumps(summary, indent=2).encode())
    return replace(history, summary=summary)


def _trained(
    parts: Parts, ledger: Ledger | None, folder: Folder, trainer: OverGrid, observe: Observer
) -> tuple[State, str]:
    asked = EVALUATION in shares(parts.experiment) and was_asked(folder, EVALUATION)
    try:
        if not asked:
            return loop(parts, ledger, folder, trainer, observe)
    except BudgetExhausted:
        pass
    state, done = folder.restore() or (parts.algorithm.init(parts.params), 0)
    return state, "rounds" if done >= parts.experiment.train.rounds else "budget"


def _roster(experiment: Experiment, sites: Sequence[str], facts: dict[str, dict[str, Any]], folder: Folder) -> Roster:
    path = folder.path / SITES
    if path.exists():
        return Roster.of(json.loads(path.read_text("utf-8")))
    rows = public_rows(experiment)
    for name, declared in facts.items():
        if declared["shape"] != list(shape(rows)) or declared["classes"] != rows.classes:
            raise BadInput(
                f"Site {name} has rows of shape {declared['shape']} in {declared['classes']} classes; the experiment has "
                f"{list(shape(rows))} in {rows.classes}: correct the site's data or the experiment."
            )
    present, privacy = [facts[name] for name in sites], experiment.privacy
    epsilons = [float(declared["epsilon"]) for declared in present]
    if privacy.level == "minimum":
        epsilons = [min(epsilons)] * len(epsilons)
    sizes = tuple(int(declared["examples"]) for declared in present)
    return Roster(tuple(sites), sizes, tuple(epsilons), privacy.run_delta, privacy.unit_kept)


def _releases(parts: Parts, ledger: Ledger | None, folder: Folder) -> int:
    rounds = parts.experiment.train.rounds
    if ledger is None or not parts.plan.sampler.charges_all:
        return rounds
    _, first = folder.restore() or (None, 0)
    left = BudgetTracker(parts, ledger).rounds_left_to_all(hint=rounds)
    return ledger.charged_rounds() + min(rounds - first, left)
