"""A lying server: it drives a real `Site` with any sequence of greetings, proposals, questions and openings it likes."""

import json
import sqlite3
from dataclasses import asdict

import tacit
from tacit.deploy.site.agreement import terms_of
from tacit.deploy.site.consent import data_digest, departures
from tacit.deploy.site.limits import make_site
from tacit.deploy.site.requests import Roster
from tacit.deploy.site.site import Site
from tacit.engine.assemble import assemble, clients
from tacit.experiment.file import dumps
from tacit.types import Message
from tacit.wire import pack

RUN = "0" * 32
EPSILONS = (1.0, 2.0)


def experiment(**changes):
    values = {
        "data": {"clients": 2, "examples_per_client": 60},
        "train": {"rounds": 3, "local_steps": 2, "sampling_rate": 0.5},
        "privacy": {"kind": "local", "epsilon": list(EPSILONS)},
        "run": {"randomness": "os"},
    }
    for section, change in changes.items():
        values[section] = values.get(section, {}) | change
    return tacit.Experiment(**values)


class Server:
    """The other end of one site: it asks whatever a test wants."""

    def __init__(self, folder, chosen):
        self.folder, self.experiment = folder, chosen
        make_site(folder, chosen, name="client-0", epsilon=EPSILONS[0])
        self.restart()
        _, _, population = clients(chosen)
        sizes = tuple(population.sizes.tolist())
        epsilons, privacy = tuple(population.epsilons.tolist()), chosen.privacy
        self.roster = Roster(population.names, sizes, epsilons, privacy.run_delta, privacy.unit_kept)
        self.parts = assemble(chosen, clients(chosen)[0], self.roster.population((1, 8, 8)))
        self.terms = asdict(terms_of(self.parts, self.parts.population[0], epsilon=1.0))

    def restart(self):
        self.site = Site(self.folder)

    def ask(self, body=b"", **question):
        """Any question at all."""
        return self.site.answer(question, body)

    def hello(self, chosen=None):
        return self.ask(kind="hello", experiment=(chosen or self.experiment).toml())[0]

    def agree(self, *, terms=None, **changes):
        ask = {"kind": "agree", "run": RUN, "experiment": self.experiment.toml(), "roster": self.roster.record()}
        return self.ask(**(ask | {"terms": self.terms | (terms or {})} | changes))[0]

    def train(self, round=0, *, body=None, run=RUN, **more):
        return self.ask(body or self.body(), kind="train", run=run, round=round, **more)[1]

    def body(self, params=None):
        state = self.parts.algorithm.init(self.parts.params if params is None else params)
        return pack(self.parts.algorithm.broadcast(state, [self.parts.population[0]], round=0))

    def parameters(self, params):
        """A question with any parameters, whatever the algorithm would send."""
        return pack(Message("server", {"params": params}))

    def charges(self):
        with sqlite3.connect(self.folder / "ledger.db") as book:
            try:
                return [round for (round,) in book.execute("SELECT round FROM charges ORDER BY round")]
            except sqlite3.OperationalError:
                return []

    def log(self):
        return [json.loads(line) for line in (self.folder / "log.jsonl").read_text().splitlines()]

    def budget(self, old, new):
        """The site's people edit their budget file."""
        path = self.folder / "budget.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def accept(asking, *, chosen=None, **changes):
    """The site's people accept by settings: those of the experiment, with changes; rows are read as the experiment says."""
    chosen = chosen or asking.experiment
    named = {place: [value] for place, value in departures(chosen).items()} | changes
    path = asking.folder / "budget.toml"
    kept = path.read_text().split("[accept]")[0].replace("most_rounds = 3", "most_rounds = 20")
    settings = {place: value for place, value in named.items() if value is not None}
    path.write_text(kept + f'[accept]\ndata = ["{data_digest(chosen)}"]\n' + dumps({"accept.settings": settings}))
