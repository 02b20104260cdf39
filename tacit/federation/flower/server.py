"""The ServerApp: who is here, what is agreed, then the same loop as the simulator with the sites as its trainer."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from tacit.build.parts import Parts, assemble, with_rule
from tacit.engine.at_clients import evaluate_at_clients, judged_by
from tacit.engine.describing import columns_asked, describe
from tacit.engine.folder import Folder, open_folder
from tacit.engine.folder import replace as write_file
from tacit.engine.history import History, finish, note_clients, open_ledger
from tacit.engine.loop import Observer, loop
from tacit.engine.meter import Meter
from tacit.errors import BadInput, BudgetExhausted, RunExists, TacitError
from tacit.experiment import Experiment
from tacit.experiment.asking import EVALUATION, shares
from tacit.federation.flower.at_sites import AtSites, was_asked
from tacit.federation.flower.door import Door
from tacit.federation.flower.frame import oddity
from tacit.federation.flower.muster import LOOK_SECONDS, Call, call_of, muster
from tacit.federation.flower.narrate import ending, in_flowers_words, observer, say_refusals_once
from tacit.federation.flower.parent import GRACE_SECONDS, end_with_parent
from tacit.federation.flower.pulls import bound_pulls
from tacit.federation.flower.ranges_of_sites import asked_of_sites, known, learn, with_ranges
from tacit.federation.flower.remote_opening import Sites
from tacit.federation.flower.standing import Status
from tacit.federation.flower.trainer import OverGrid
from tacit.federation.site.agreement import Terms, terms_of
from tacit.federation.site.final_model import sent
from tacit.federation.site.join import asked_of
from tacit.federation.site.own_rows import public_rows, refuse_undeployable, refuse_unpinned, shape
from tacit.federation.site.ranged import record_of
from tacit.federation.site.roster import Roster
from tacit.federation.site.sealed import seals_of
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.meanwhile import Pages, page_meanwhile
from tacit.types import State

KEEP_SECONDS = 60.0  # for the sites to keep the model at the end
LEAVE_SECONDS = 3 * GRACE_SECONDS
SITES = "sites.json"


def server_app(experiment: Path | Experiment) -> ServerApp:
    """A ServerApp that runs an experiment with the sites of its run config, and writes the report's page at the end.

    A refusal is one sentence on standard output, and is raised on, so that Flower knows that the run failed. The process ends
    with the one that started it.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        end_with_parent()
        say_refusals_once()
        try:
            call = call_of(context.run_config)
            bound_pulls(call.round_seconds)
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

    Guarantee: the server's own ledger is charged before a site is asked, and every site charges its own before it answers. The
    loop is the simulator's: from one seed and the same rows it reaches the same model. A run whose sites cannot pay any more
    ends as planned, with the model it has reached. status.json says how far it has come, and after a failure why.

    Assumes: the grid's nodes are the sites of `call.sites`, each proved by its key; what they send is not believed beyond that.

    Raises: BadInput for an experiment that cannot be deployed, RunExists for a folder that is taken, TacitError naming the
    sites that stopped it and why. A run that stopped can be resumed; what was charged stays spent.
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
        status.write(folder, "failed", in_words(error))
        raise
    finally:
        folder.close()


def _open(experiment: Experiment, call: Call) -> Folder:
    """The run's folder. A run is resumed while the server before it, whose SuperLink died, may still be on its way out."""
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
    nodes, facts = muster(grid, experiment, call, tell=partial(status.wait, folder))
    roster = _roster(experiment, call.sites, facts, folder)
    population = roster.population(shape(rows))
    text, sites = experiment.toml(), Sites()
    seals = seals_of(
        experiment,
        call.keys,
        run=folder.run,
        site=None,
        text=text,
        roster=roster.record(),
        opening=sites.opening,
    )
    parts = assemble(experiment, rows, population, elsewhere=True, seals=seals)
    folder.write("experiment.toml", with_rule(parts).toml().encode())
    terms = _terms(parts)
    indices = {name: index for index, name in enumerate(roster.names)}
    here = {indices[name]: node for name, node in nodes.items()}
    ledger = open_ledger(parts, folder)
    note_clients(parts, ledger, folder, simulated=False)
    common = {"kind": "agree", "run": folder.run, "experiment": parts.experiment.toml(), "roster": roster.record()}
    common |= {"releases": _releases(parts, ledger, folder)}
    least = 1 if parts.algorithm.forgiving else experiment.train.min_clients
    query, told = asked_of_sites(parts), known(folder)
    common |= {"ranges": record_of(told.ranges)} if told else {}
    door = Door(grid, roster.names, terms, common, call.join_seconds)
    door.agree(here)
    if query is not None and told is None:
        told = learn(parts, ledger, folder, query, AtSites(grid, here, call.round_seconds), least=least)
        common["ranges"] = record_of(told.ranges)
        door.agree(here)  # once more: now to these ranges
    if told is not None:
        parts = with_ranges(parts, told, seals)
        note_clients(parts, ledger, folder, simulated=False)
    patience, odd = call.round_seconds, partial(oddity, parts)
    trainer = OverGrid(grid, folder, here, roster.names, terms, patience, least, door, odd)
    trainer.status = None if parts.plan.together else status  # who takes part is a secret of central DP
    sites.trainer = trainer
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
    kept = door.hand_out(trainer.nodes, sent(state.result.cpu()), seconds=min(patience, KEEP_SECONDS))
    return _with_sites(history, trainer, folder, kept)


def _trained(
    parts: Parts, ledger: Ledger | None, folder: Folder, trainer: OverGrid, observe: Observer
) -> tuple[State, str]:
    """The state that the rounds come to, and why they ended. Sites that were asked about it train no more."""
    asked = EVALUATION in shares(parts.experiment) and was_asked(folder, EVALUATION)
    try:
        if not asked:
            return loop(parts, ledger, folder, trainer, observe)
    except BudgetExhausted:
        pass
    state, done = folder.restore() or (parts.algorithm.init(parts.params), 0)
    return state, "rounds" if done >= parts.experiment.train.rounds else "budget"


def _roster(experiment: Experiment, sites: Sequence[str], facts: dict[str, dict[str, Any]], folder: Folder) -> Roster:
    """What the sites declared; a resumed run keeps the declarations it began with."""
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
    roster = Roster(tuple(sites), sizes, tuple(epsilons), privacy.run_delta, privacy.unit_kept)
    write_file(path, json.dumps(roster.record(), indent=1).encode())
    return roster


def _terms(parts: Parts) -> dict[int, Terms]:
    common = {"rounds": parts.experiment.train.rounds, "parameters": parts.params.numel(), "frozen": parts.frozen}
    everybody = [parts.population[index] for index in range(len(parts.population))]
    return {
        client.index: terms_of(
            parts.algorithm.cost(client),
            epsilon=client.budget.epsilon,
            asked=asked_of(parts, client.index),
            **common,
        )
        for client in everybody
    }


def _releases(parts: Parts, ledger: Ledger | None, folder: Folder) -> int:
    """How many models a run of central DP will have released at most: those charged so far and those that can follow."""
    rounds = parts.experiment.train.rounds
    if ledger is None or not parts.plan.together:
        return rounds
    _, first = folder.restore() or (None, 0)
    meter = Meter(parts, ledger)
    left = ledger.rounds_left_to_all(meter.budget, meter.price_of_all, hint=rounds)
    return ledger.charged_rounds() + min(rounds - first, left)


def _with_sites(history: History, trainer: OverGrid, folder: Folder, kept: Sequence[str]) -> History:
    """The summary with what the sites' own ledgers say, who was absent at the end, and who has the model."""
    sites = {"epsilon": trainer.spent, "absent": trainer.absent, "have_the_model": list(kept)}
    summary = history.summary | {"sites": sites}
    write_file(folder.path / "summary.json", json.dumps(summary, indent=2).encode())
    return replace(history, summary=summary)


def in_words(error: BaseException) -> str:
    """Why a run ended, for status.json; Flower ends a server whose SuperLink is gone by SystemExit."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "The server was told to stop, or its SuperLink is gone."
    return str(error) or type(error).__name__
