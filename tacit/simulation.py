"""A federation on this machine: `tacit.run`, one experiment; `compare`, a grid of them."""

import copy
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit import plugin, store
from tacit.algorithms import Rule
from tacit.data.given import Dataset
from tacit.engine import trainers
from tacit.engine.assemble import Parts, build, written
from tacit.engine.canaries import canaries_of, insert_canaries
from tacit.engine.evaluate import evaluate
from tacit.engine.history import History, finish, note_clients
from tacit.engine.ledgers import note_unpaid, open_ledger, open_unpaid
from tacit.engine.loop import Observer, loop
from tacit.engine.queries import columns_asked, describe, evaluate_at_clients, judged_by, query_of, ranged
from tacit.engine.release import held
from tacit.engine.run_files import PERSONAL
from tacit.engine.run_folder import Folder, open_folder, refuse_other_parts
from tacit.engine.stacked import stacked
from tacit.engine.trainers import Pending, Trainer
from tacit.errors import BadInput, TacitError, TrainingDiverged
from tacit.experiment import Experiment
from tacit.experiment.data import CAPPED
from tacit.experiment.schema import OpenSection
from tacit.parts import metrics
from tacit.personal import one
from tacit.privacy.ledger.ledger import NOTHING, Before
from tacit.privacy.ledger.reader import noted, read_before
from tacit.report.live import page_meanwhile
from tacit.report.page import write_page
from tacit.report.plan import refuse_spent
from tacit.report.progress import line, seen_by_people
from tacit.report.writers import load_writers, open_writers
from tacit.training.independence import Unsupported
from tacit.training.stacked import warm
from tacit.types import Message
from tacit.wire import unpack

ONE_PROCESS = (
    "clients are trained in one process: gradients were computed here while another device was in sight, and no fork of this"
    " process can compute any"
)
KEY = "clients_at_once"  # in run.json; 0: each by itself
ROWS_A_CLIENT = 8  # as long as the model, that a client of a stack holds at once
CHANCE = 4  # standard deviations of a Poisson cohort
ON_CPU = 2 << 30  # bytes
SHARE = 0.5  # of the device's memory for them: activations need some too


# Who trains the clients of a run: each by itself, or many at once in one stack. Decided once and kept in `run.json`.


def with_trainer(parts: Parts, folder: Folder) -> Parts:
    """The parts with the number of clients that train at once, as the folder says, or as is decided now and written there.
    Raises: BadInput for a folder that says something else than a number."""
    file = folder.path / "run.json"
    known = json.loads(file.read_text("utf-8"))
    if KEY not in known:
        parts = decided(parts)
        folder.write("run.json", json.dumps(known | {KEY: parts.together}).encode())
    else:
        count = known[KEY]
        if type(count) is not int or not 0 <= count <= len(parts.population):
            raise BadInput(f"{file} is damaged: {KEY} is no number of clients.")
        # what a stack gives depends on who is in it: it is only for runs of which every start is another release
        if count and not parts.nonce:
            raise BadInput(f"{file} is damaged: a run that can be repeated bit for bit trains each client by itself.")
        parts = replace(parts, together=count)
    one_process = not parts.together and trainers.wanted_workers(parts) > 1 and not trainers.fork_can_train()
    return replace(parts, dataset=parts.dataset.noting(ONE_PROCESS)) if one_process else parts


def decided(parts: Parts) -> Parts:
    """As many clients at once as memory lets in, on an accelerator, or where the experiment says so.
    Raises: BadInput with the reason where the experiment says so and they cannot be stacked."""
    run, on_device = parts.experiment.run, parts.theta.is_cuda
    if not (on_device if run.at_once is None else run.at_once):
        return parts
    free = torch.cuda.mem_get_info(parts.theta.device)[0] if on_device else ON_CPU
    fitting = int(SHARE * free) // (ROWS_A_CLIENT * 4 * max(1, parts.theta.numel()))
    margin = CHANCE * parts.cohort**0.5 if parts.plan.sampler.charges_all else 0.0
    at_once = replace(parts, together=max(1, min(len(parts.population), parts.cohort + int(margin), fitting)))
    try:
        stacked(at_once)
    except Unsupported as error:
        if run.at_once:
            raise BadInput(f"run.at_once = true, but clients cannot be trained at once: {error}.") from None
        why = f"clients are trained one by one, which is slower: the model cannot be stacked ({error})"
        return replace(parts, dataset=parts.dataset.noting(why))
    return at_once


# What `tacit.run` is passed from Python, in the place of what an experiment names: data, a model, a rule.

Model = nn.Module | Callable[..., nn.Module]


def with_passed(
    experiment: Experiment, *, data: Dataset | None = None, model: Model | None = None, rule: Rule | None = None
) -> Experiment:
    """The experiment with these parts in the place of those that it names. Raises BadInput for what is no such part.
    Each is copied: what becomes of the program's own afterwards changes nothing in the run."""
    passed = {"data": (data, _data), "model": (model, _model), "aggregate": (rule, _rule)}
    tables = {name: section(experiment, part) for name, (part, section) in passed.items() if part is not None}
    said = {name: getattr(experiment, name) for name in Experiment.model_fields}
    return Experiment(**said | tables) if tables else experiment


def _data(experiment: Experiment, data: Any) -> OpenSection:
    if not isinstance(data, Dataset):
        way = ".from_pandas(df, label=...)" if hasattr(data, "iloc") else "(x, y, classes=..., test=...)"
        raise BadInput(f"Expected data to be a tacit.Dataset, got a {type(data).__name__}: pass tacit.Dataset{way}.")
    section = experiment.data
    _refuse_options(section, "the data is")
    named, said = data.rows.client_names is not None, "partition" in section.model_fields_set
    if named and said and section.partition != "natural":
        raise BadInput(
            f'The data names its clients, and data.partition = "{section.partition}" would deal their rows out again: leave it'
            " out, or leave the clients out of the Dataset."
        )
    if not named and section.partition == "natural":
        raise BadInput(
            'data.partition = "natural" needs clients: name them in the Dataset (clients=..., or a list of (x, y)), or choose'
            " another partition."
        )
    if named and section.examples_per_client is not None:
        raise BadInput(CAPPED)
    section = section.model_copy(update={"partition": "natural"}) if named else section
    return section.carrying(data, passed=data.passed)


def _model(experiment: Experiment, model: Any) -> OpenSection:
    if isinstance(model, nn.Module):
        _refuse_options(experiment.model, "a model that is made already is")
        if experiment.seed.model is not None:
            raise BadInput("A model that is made already has its weights: leave out seed.model, or pass a function.")
        with plugin.guarded("model= cannot be copied"):
            own = copy.deepcopy(model)
        return experiment.model.carrying(Copies(own), passed="")
    if not callable(model):
        raise BadInput(
            f"Expected model to be a torch module or a function that makes one, got {model!r:.60}: a name goes into model.name."
        )
    return experiment.model.carrying(model, passed="")


def _rule(experiment: Experiment, rule: Any) -> OpenSection:
    if isinstance(rule, type) and issubclass(rule, Rule):
        raise BadInput(f"rule={rule.__name__} is the class: pass a rule, as in rule={rule.__name__}().")
    if not isinstance(rule, Rule):
        raise BadInput(f"Expected rule to be a tacit.Rule, got {rule!r:.60}: a name goes into aggregate.rule.")
    _refuse_options(experiment.aggregate, "the rule is")
    with plugin.guarded("rule= cannot be copied"):
        own = copy.deepcopy(rule)
    return experiment.aggregate.carrying(own, passed=f"{type(rule).__name__}, {held(own)}")


@dataclass(frozen=True)
class Copies:
    """The factory of a model that is made already: each call copies it, weights included, ready to be trained."""

    model: nn.Module = field(repr=False)

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.model).train()


def _refuse_options(section: OpenSection, what: str) -> None:
    for key in section.options():
        named = getattr(section, section.names_part)
        raise BadInput(
            f"{section.table()}.{key} is an option of {named!r}, and {what} passed from Python: leave it out."
        )


# What the server of a simulation gets, heard by somebody else too: for attacks, which see what their attacker would see.

Heard = Sequence[tuple[int, Message]]  # the index of a client and what it sent, in the order of the cohort
Hear = Callable[[int, Message, Heard], None]  # of a round: its number, what was broadcast, what was answered


@dataclass(frozen=True)
class Overheard(Trainer):
    """A trainer with somebody who hears every round, once all of its clients have answered and before the next begins."""

    trainer: Trainer
    hear: Hear

    def dispatch(self, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        return self._heard(self.trainer.dispatch(message, round, cohort), message, round, cohort)

    def _heard(self, pending: Pending, message: Message, round: int, cohort: Sequence[int]) -> Pending:
        answers = []
        for index, reply in zip(cohort, pending, strict=True):
            sent = reply[0] if isinstance(reply[0], Message) else unpack(reply[0])
            kept = {name: tensor.clone() for name, tensor in sent.tensors.items()}  # buffers are used again
            answers.append((index, Message(sent.sender, kept, dict(sent.facts))))
            yield reply
        self.hear(round, message, answers)


# `tacit.run`: one experiment from its settings to its history, on this machine.

MOST_NAMED = 8  # columns in a sentence

Ready = Callable[[Parts, list[dict[str, Any]]], None]


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path = "digits",
    *,
    data: Dataset | None = None,
    model: Model | None = None,
    rule: Rule | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    observe: Observer | None = None,
    ready: Ready | None = None,
    progress: bool | None = None,
    page: bool = True,
    hear: Hear | None = None,
    trial_id: str = "",
    **settings: Any,
) -> History:
    """Runs an experiment and returns its history; the files are in `out` (or a new folder under runs/).
    The experiment may be named (a file, or one that ships) or be tables; `settings` are keys to change, as in `epsilon=3` or
    `**{"train.rounds": 20}`. `progress` is a line on standard error: in a terminal or a notebook unless it is False.
    `data`, `model` (a torch module, whose weights are the start, or a function that makes one) and `rule` take the place of what
    the experiment names; the run's files have their digests, and go on only with the same ones. `observe` is called with the
    record of every round. `page = False` leaves out report.html; `tacit report` makes it later. `hear` is for attacks
    (tacit/lab/attacks): it is shown what the server sends and gets, which in a deployment nobody else is. `trial_id` names a run
    of a search (tacit/lab/tuning): another name is other noise, and another release.
    Guarantee: the ledger is charged on disk before anything that a client trained is read; on a CPU, before it trains. With
    seeded randomness a resumed run equals an uninterrupted one, bit for bit on CPU. Raises TacitError in one sentence for
    whatever cannot be done; nothing is lost then."""
    _refuse_wrong(observe=observe, ready=ready, hear=hear, out=out, resume=resume, force=force, page=page)
    experiment = Experiment.of(experiment, **settings)
    path = Path(out or new_folder(experiment.name))
    store.refuse_taken(path, resume=resume, force=force)
    experiment = with_passed(experiment, data=data, model=model, rule=rule)
    if resume:
        refuse_other_parts(path, experiment)  # before anything is read or made
    writers = load_writers(experiment.run.writers)
    warm(experiment.run.devices)  # while rows are read
    with ExitStack() as stack:
        before = before_of(experiment, path, resume=resume)
        parts = replace(build(experiment, before=before), trial_id=trial_id)
        preflight(parts, resume=resume)
        folder = open_folder(path, experiment, resume=resume, force=force, resolved=written(parts), before=before)
        stack.callback(folder.close)
        first = parts  # whose rows the ledger knows: as they were read, before any private range was asked for
        parts = insert_canaries(with_trainer(ranged(first, folder), folder), folder)
        try:  # processes are forked before gradients are computed here
            trainer: Trainer = stacked(parts) if parts.together else trainers.each_by_itself(parts, stack)
        except Unsupported as error:
            raise BadInput(
                f"This run began with clients that train at once, and they cannot ({error}): start anew."
            ) from None
        if parts.plan.priced:
            trainers.workspace_of(parts).refuse_memory(parts.population.x, parts.population.y)
        if hear is not None:
            trainer = Overheard(trainer, hear)
        ledger = open_ledger(replace(first, together=parts.together), folder)
        unpaid = open_unpaid(first, folder)
        past = folder.past(before=(folder.restore() or (None, 0))[1])
        if ready:
            ready(parts, past)
        note_clients(parts, ledger, folder)
        book = stack.enter_context(open_writers(writers, folder, experiment, past, unit=parts.population.unit))
        describe(parts, ledger, folder)
        if (seen_by_people() if progress is None else progress) and ready is None:
            observe = stack.enter_context(line(experiment, observe))
        shown = stack.enter_context(page_meanwhile(folder.path, observe)) if page else observe
        try:
            state, stopped = loop(parts, ledger, folder, trainer, book.observing(shown))
        except torch.OutOfMemoryError:
            raise TacitError(
                "The device has not enough memory, and it was not training that took it: end what else runs there, then go on with"
                " --resume; the last checkpoint is kept."
            ) from None
        except TrainingDiverged as error:
            columns = parts.dataset.encoder.columns if parts.dataset.encoder else ()
            names = [repr(one.name) for one in columns if one.is_number and one.span is None]
            if not names:
                raise
            hint = f"Or declare ranges in data.numeric for the unscaled {', '.join(names[:MOST_NAMED])}."
            raise TrainingDiverged(f"{error} {hint}") from error
        note_unpaid(unpaid, parts, state.result)
        at_clients = evaluate_at_clients(parts, ledger, folder, state.result)
        own, short = one.measured(parts, state.result, kept=state.control.get("own")) or (None, None)
        if own is not None:
            folder.write(PERSONAL, json.dumps(own, indent=1).encode())
        asked = {"at_clients": at_clients, "personal": short}
        history = finish(parts, ledger, folder, state.result, stopped, **asked, notes=book.notes.values())
        book.finish(history.summary)
    if page:
        write_page([folder.path], folder.path / "report.html")
    return history


def _refuse_wrong(*, out: Any, observe: Any, ready: Any, hear: Any, **flags: Any) -> None:
    """Refuses arguments of the wrong type before anything is read. Raises BadInput."""
    if out is not None and not isinstance(out, str | Path):
        raise BadInput(f"Expected out to be a path, got {out!r:.60}.")
    for name, value in {"observe": observe, "ready": ready, "hear": hear}.items():
        if value is not None and not callable(value):
            raise BadInput(f"Expected {name} to be a function that is called in every round, got {value!r:.60}.")
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise BadInput(f"Expected {name} to be True or False, got {value!r:.60}.")


def new_folder(name: str) -> Path:
    """A folder under runs/ that does not exist yet."""
    begun = Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    return store.first_free(begun.with_name(f"{begun.name}{end}") for end in ("", *(f"-{n}" for n in range(2, 1000))))


def before_of(experiment: Experiment, path: Path, *, resume: bool) -> Before:
    """What other runs of a shared ledger had sealed when this run began."""
    shared = experiment.privacy.ledger
    if shared is None:
        return NOTHING
    return noted(path / "run.json") if resume else read_before(Path(shared), unit=experiment.privacy.unit_kept)


def preflight(parts: Parts, *, resume: bool) -> None:
    experiment = parts.experiment
    if parts.plan.priced:
        shared = experiment.privacy.ledger
        parts.start.refuse_before(Path(shared) if shared else None)
    metrics.load(parts.metric)
    judged_by(experiment, parts.dataset)
    columns_asked(experiment, parts.dataset)
    canaries_of(parts)
    one.refuse_unfit(experiment.personal.kind, parts.model, parts.population.x)
    if resume:
        return
    refuse_spent(parts)
    if query_of(experiment, parts.dataset, parts.plan, parts.population) is None:  # else rows are not scaled yet
        evaluate(replace(parts), parts.params)  # a copy: what it moved to the device is let go with it
