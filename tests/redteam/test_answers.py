"""What a cheating site can do to a server, and to the run of all others, by what it says of itself and by what it sends."""

import io
from types import SimpleNamespace

import pytest
import torch
from dp_accounting import GaussianDpEvent
from engine.conftest import SMALL
from federation.flower.conftest import THREE, Federation
from flwr.app import Error
from flwr.common.constant import ErrorCode
from redteam.test_deployed_sums import Line
from rich.console import Console

import tacit
from tacit.cli import ledger as ledgers
from tacit.cli.planning import show_stats
from tacit.deploy.operate.serve import closing
from tacit.deploy.server.gather import Heard
from tacit.deploy.server.messages import _content, new_nonce, read
from tacit.errors import TacitError
from tacit.privacy.ledger.ledger import Ledger
from tacit.types import Budget, Client, Message
from tacit.wire import pack, unpack


@pytest.fixture
def federation(tmp_path):
    def make(**changes):
        values = SMALL | THREE | {key: THREE.get(key, SMALL.get(key, {})) | value for key, value in changes.items()}
        values["privacy"] = SMALL["privacy"] | values["privacy"]
        return Federation(tmp_path, tacit.Experiment(**values))

    return make


def cheating(change):
    """The first site sends another answer in every round."""

    def answer(head, said, raw, node):
        del said
        if head["kind"] != "train" or node != 1:
            return None
        other = change(unpack(raw))
        return other if isinstance(other, bytes) else pack(other)

    return answer


def with_facts(**facts):
    return lambda sent: Message(sent.sender, sent.tensors, sent.facts | facts)


def with_tensors(make):
    return lambda sent: Message(sent.sender, make(sent.tensors["update"]), sent.facts)


ODD = {
    "another weight": with_facts(examples=10**12),
    "less noise": with_facts(noise_std=1e-30),
    "a larger budget": with_facts(epsilon=1e9),
    "a fact of another kind": with_facts(noise_std="none"),
    "a fact more": with_facts(clients=10**6),
    "no facts": lambda sent: Message(sent.sender, sent.tensors, {}),
    "another's name": lambda sent: Message("client-1", sent.tensors, sent.facts),
    "no update": with_tensors(lambda update: {}),
    "another shape": with_tensors(lambda update: {"update": update[:-1]}),
    "another type": with_tensors(lambda update: {"update": update.double()}),
    "a tensor more": with_tensors(lambda update: {"update": update, "coordinates": update.clone()}),
    "not a number": with_tensors(lambda update: {"update": torch.full_like(update, torch.nan)}),
    "more than any honest one": with_tensors(lambda update: {"update": update * 1e30}),
    "no message": lambda sent: b"\xff" * 4096,
}


@pytest.mark.parametrize("why", ODD)
def test_a_site_that_says_or_sends_what_no_honest_one_could_is_left_out_by_name_and_the_run_goes_on(federation, why):
    deployed = federation(train={"rounds": 2})
    history = deployed.run(Line(deployed, answer=cheating(ODD[why])))
    assert [record["answered"] for record in history.rounds] == [2, 2]
    assert history.summary["sites"]["absent"]["client-0"].lower().startswith(("it ", "a message"))


@pytest.mark.parametrize("rule", ["mean", "random-effects", "pfa", "pfa-plus", "public-only", "inverse-variance"])
def test_an_honest_answer_is_what_the_server_expects_under_every_rule(federation, rule):
    history = federation(train={"rounds": 2}, aggregate={"rule": rule}).run()
    assert [record["answered"] for record in history.rounds] == [3, 3]


@pytest.mark.parametrize("changes", [{"privacy": {"level": "minimum"}}, {"privacy": {"unit": "client", "clip": 0.5}}])
def test_an_honest_site_states_the_budget_that_everybody_knows_not_its_own_limit(federation, changes):
    history = federation(train={"rounds": 2}, **changes).run()
    assert [record["answered"] for record in history.rounds] == [3, 3]


LIES = {
    "nothing": lambda said: {},
    "no shape": lambda said: {key: value for key, value in said.items() if key != "shape"},
    "no number": lambda said: said | {"epsilon": "inf"},
    "no epsilon": lambda said: said | {"epsilon": -1.0},
    "not a number": lambda said: said | {"epsilon": float("nan")},
    "too many rows": lambda said: said | {"examples": 2**62},
    "fewer rows than none": lambda said: said | {"examples": -60},
    "rows of rows": lambda said: said | {"examples": [60]},
    "a list for a name": lambda said: said | {"site": ["client-0"]},
    "a name for a terminal": lambda said: said | {"site": "\x1b[2J\nThe run finished."},
    "a nested shape": lambda said: said | {"shape": [[1], 8, 8]},
}


class Greeted(Line):
    """A federation whose first site answers the greeting with a lie."""

    def __init__(self, deployed, lie):
        super().__init__(deployed)
        self.lie = lie

    def push_messages(self, messages):
        names = []
        for sent in messages:
            names += super().push_messages([sent])
            if read(sent)[0]["kind"] == "hello" and sent.metadata.dst_node_id == 1:
                self._replies[names[-1]].content = _content(
                    self.lie(read(self._replies[names[-1]])[0]), b"", new_nonce()
                )
        return names


@pytest.mark.parametrize("why", LIES)
def test_a_site_that_lies_about_itself_in_a_greeting_is_refused_by_the_name_of_its_key(federation, why):
    deployed = federation(train={"rounds": 1})
    with pytest.raises(
        TacitError, match=r"did not join \(client-0\)\. A site refused: client-0: it says of itself"
    ) as caught:
        deployed.run(Greeted(deployed, LIES[why]), join_seconds=0.4)
    assert str(caught.value).isprintable()


MARKUP = (
    "[/] [bold]no[/bold] [link=file:///etc/passwd]"  # printable, and for rich no text: a tag that closes nothing raises
)


def said(print_it):
    """What a terminal would show."""
    console = Console(width=400, file=io.StringIO(), force_terminal=False)
    print_it(console)
    return console.file.getvalue()


def test_a_site_whose_refusal_is_markup_ends_neither_the_table_of_a_run_nor_that_of_its_statistics(tmp_path, capsys):
    """`tacit deploy up` ended in a traceback when all its rounds were done, and `tacit stats` showed nothing at all."""
    summary = {
        "stopped": "rounds",
        "metric": "accuracy",
        "test_accuracy": 0.5,
        "metrics": {},
        "rounds": 3,
        "guarantee": None,
    }
    summary |= {"uplink_bytes": 1, "downlink_bytes": 1, "seconds": 1.0, "sentence": MARKUP, "clients": 2}
    summary |= {"at_clients": {"unknown": "No site answered.", "missing": {"north": MARKUP}}}
    summary |= {"sites": {"epsilon": {"north": 3.0}}}  # of a run that promises nothing: who sends it lies
    shown = said(lambda console: closing(summary, tmp_path, console))
    assert f"north: {MARKUP}" in shown
    assert "ledger of north" not in shown
    show_stats({"columns": [], "answered": 0, "clients": 2, "missing": {"north": MARKUP}})
    assert MARKUP in " ".join(capsys.readouterr().out.split())


def test_a_client_whose_name_is_markup_ends_no_table_of_a_ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", population="rows", run="0" * 32)
    ledger.open_round(0, "a")
    client = Client(0, MARKUP, Budget(9.0, 1e-5, "record"), torch.zeros(1), torch.zeros(1))
    assert ledger.admit([client], lambda _: GaussianDpEvent(3.0))
    tables = (ledgers.by_client(ledger.path, delta=1e-5), ledgers.by_run(ledger.path), ledgers.by_charge(ledger.path))
    shown = said(lambda console: [console.print(table.terminal()) for table in tables])
    assert shown.count(MARKUP) == 2


def test_a_refusal_cannot_write_to_the_servers_terminal():
    heard = Heard()
    error = Error(ErrorCode.MOD_FAILED_PRECONDITION, "\x1b[2J\n" + "The run finished. " * 10_000)
    heard.take(1, SimpleNamespace(has_error=lambda: True, error=error))
    assert heard.refusals[1].isprintable()
    assert len(heard.refusals[1]) <= 500
