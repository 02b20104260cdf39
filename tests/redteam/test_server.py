"""A server that lies to a site: what it asks, how often, and with which parameters."""

import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity
from redteam.lying_server import EPSILONS, RUN, Server, accept, experiment

from tacit.deploy.server.client import respond
from tacit.deploy.server.messages import kind_of_refusal
from tacit.deploy.server.messages import question as sent_question
from tacit.deploy.site import agreement, layout, replies
from tacit.deploy.site.agreement import accept as real_accept
from tacit.deploy.site.consent import code_digest
from tacit.deploy.site.limits import allow, make_site, read_limits
from tacit.deploy.site.site import UNSAID, Site
from tacit.engine.assemble import START
from tacit.errors import BudgetExhausted, Refusal, Refused
from tacit.privacy.ledger.ledger import Ledger
from tacit.types import Message
from tacit.wire import pack, shown, unpack

MARK = "patient-4711"


def huge(asking, scale=3e38):
    """Parameters whose scores overflow for some records and not for others."""
    params = torch.zeros_like(asking.parts.params)
    params[::7] = scale
    params[3::11] = -scale
    return params


# --- the noiseless oracle ---


@pytest.mark.parametrize("unit", ["record", "client"])
def test_parameters_near_the_largest_float_are_answered_like_any_others(server, unit):
    asking = server(privacy={"unit": unit}, train={"sampling_rate": 0.5 if unit == "record" else None})
    asking.agree()
    for round, scale in enumerate((3e38, 1e38, 3e37)):
        message = unpack(asking.train(round, body=asking.parameters(huge(asking, scale))))
        assert message.tensors["update"].isfinite().all()
    assert asking.charges() == [0, 1, 2]


def test_a_round_binds_one_question_although_its_answer_was_never_kept(server, monkeypatch):
    asking = server()
    asking.agree()

    def dies(*args):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("tacit.deploy.site.replies.keep", dies)
        with pytest.raises(Refused, match=UNSAID):
            asking.train(0)
    spent = asking.charges()
    for restart in (False, True):
        if restart:
            asking.restart()
        with pytest.raises(Refused, match="one round is one question"):
            asking.train(0, body=asking.body(params=asking.parts.params + 1))
        assert asking.charges() == spent
    asking.train(0)
    assert len(asking.charges()) == len(spent) + 1, (
        "the same question is a new attempt: its noise is new, so it is paid"
    )


def test_a_question_is_bound_then_paid_then_copies_are_looked_for_then_it_is_trained_then_kept(server, monkeypatch):
    asking = server()
    asking.agree()
    order, run = [], asking.folder / "runs" / RUN

    def seen(what):
        files = [kind for kind in (".question", ".answer") if (run / f"round-0000000{kind}").exists()]
        order.append((what, files, asking.charges()))

    def watched(allowed, *args, **options):
        accepted = real_accept(allowed, *args, **options)

        def trainer(*question):
            seen("train")
            return accepted.trainer(*question)

        return replace(accepted, trainer=trainer)

    real_keep, real_copies, real_bind = replies.keep, Ledger.refuse_copies, replies.bind
    asking.site = Site(asking.folder, accepting=watched)
    asking.site._current(
        agreement.read(asking.folder, RUN), allow(asking.folder, asking.experiment.toml(), read_limits(asking.folder))
    )
    monkeypatch.setattr(Ledger, "refuse_copies", lambda self: (seen("copies"), real_copies(self))[1])
    monkeypatch.setattr(replies, "bind", lambda *args: (seen("bind"), real_bind(*args))[1])
    monkeypatch.setattr(replies, "keep", lambda *args: (seen("keep"), real_keep(*args))[1])
    asking.train(0)
    seen("sent")
    assert order == [
        ("bind", [], []),
        ("copies", [".question"], []),  # before the charge, so that none is made in vain,
        ("copies", [".question"], [0]),  # and after it, so that of two copies at once one is seen
        ("train", [".question"], [0]),
        ("keep", [".question"], [0]),
        ("sent", [".question", ".answer"], [0]),
    ]


def test_a_question_that_is_repeated_within_one_life_after_a_failure_is_paid_for_each_time(server, monkeypatch):
    asking = server()
    asking.agree()
    calls = []

    def fails_first(*args, **options):
        accepted = real_accept(*args, **options)
        train = accepted.trainer

        def broken(*args):
            calls.append(1)
            answer = list(train(*args))
            if len(calls) == 1:
                raise MemoryError
            return answer

        return replace(accepted, trainer=broken)

    asking.site = Site(asking.folder, accepting=fails_first)
    with pytest.raises(Refused, match=UNSAID):
        asking.train(0)
    asking.train(0)
    assert asking.charges() == [0, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameters_that_nobody_could_use_are_refused_whatever_the_rows_and_cost_nothing(server, value):
    asking = server()
    asking.agree()
    with pytest.raises(Refused, match="not finite"):
        asking.train(0, body=asking.parameters(torch.full_like(asking.parts.params, value)))
    assert asking.charges() == []


def test_a_second_server_with_the_same_run_gets_no_second_vector(server):
    asking = server()
    asking.agree()
    first = asking.train(1)
    other = Site(asking.folder)  # the site's other process, asked by the other server
    ask = {"kind": "train", "run": RUN, "round": 1}
    assert other.answer(ask, asking.body())[1] == first
    with pytest.raises(Refused, match="second release"):
        other.answer(ask, asking.body(params=asking.parts.params + 1))
    with pytest.raises(Refused, match="round 1 again, but round 2 has begun"):
        other.answer(ask | {"round": 0}, asking.body())
    assert asking.charges() == [1]


def test_every_word_on_a_round_leaves_a_fixed_time_after_its_question(server, monkeypatch):
    asking = server()
    asking.budget("[accept]", "[accept]")
    asking.budget("most_rounds", "answer_seconds = 1000.0\nmost_rounds")
    waited = []
    monkeypatch.setattr("tacit.deploy.site.site.time.sleep", waited.append)
    asking.agree()
    assert waited == [], "an agreement says nothing about the rows"
    asking.train(0)
    asking.train(0)
    with pytest.raises(Refused):
        asking.train(7)
    assert len(waited) == 3
    assert all(0 < seconds <= 1000 for seconds in waited)


# --- greetings ---


def csv_site(folder, records, *, model=None, seed=None, **data):
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    lines = ["a,b,c,d,kind", *(",".join(map(str, [*row, label])) for row, label in zip(x, y, strict=True))]
    folder.mkdir(exist_ok=True)
    (folder / "test.csv").write_text("\n".join(lines[:1] + lines[1::3]) + "\n")
    data = {"name": "csv", "path": "unused.csv", "partition": "natural", "label": "kind", "classes": 3} | data
    data = {"columns": ["a", "b", "c", "d"], "numeric": "unscaled", "clients": 20, "examples_per_client": None} | data
    epsilons = {"privacy": {"epsilon": {"north": EPSILONS[0]}}}
    chosen = experiment(
        data=data | {"test_path": str(folder / "test.csv")}, model=model or {}, seed=seed or {}, **epsilons
    )
    if not (folder / "north").exists():
        make_site(folder / "north", chosen, name="north", epsilon=1.0)
        (folder / "north" / "records.csv").write_text("\n".join([*lines, *records]) + "\n")
    return chosen


@pytest.mark.parametrize(
    "question",
    [
        {"missing": "drop"},
        {"missing": 0.0},
        {"classes": ["0", "1"]},
        {"classes": 4},
        {"columns": ["a", "b"]},
        {"label": "a", "columns": ["b", "c", "d", "kind"], "classes": 9},
        {"numeric": {"a": [0, 1]}},
        {"categorical": {"a": ["5.1", "other"]}},
        {"missing": {"a": 5.1}},
        {"header": ["a", "b", "c", "d", "kind"]},
    ],
)
def test_a_greeting_cannot_ask_about_values_by_asking_for_rows_to_be_read_in_another_way(tmp_path, question):
    chosen = csv_site(tmp_path, [])
    asking = Server.__new__(Server)
    asking.folder, asking.experiment = tmp_path / "north", chosen
    accept(asking)
    site = Site(tmp_path / "north")
    assert site.answer({"kind": "hello", "experiment": chosen.toml()}, b"")[0]["examples"] == 150
    other = csv_site(tmp_path, [], **question)
    with pytest.raises(Refused, match="reads rows in a way"):
        site.answer({"kind": "hello", "experiment": other.toml()}, b"")


def test_a_greeting_cannot_ask_about_values_by_having_other_rows_held_out_by_another_seed(tmp_path):
    """A record tosses its coin with the seed, and the free answer counts the rest: a count a seed names the records in the end."""
    chosen = csv_site(tmp_path, [], held_out=0.5)
    asking = Server.__new__(Server)
    asking.folder, asking.experiment = tmp_path / "north", chosen
    accept(asking, **{"run.seed": {"min": 0, "max": 10**6}})
    site = Site(tmp_path / "north")
    seeds = [chosen.model_copy(update={"run": chosen.run.model_copy(update={"seed": seed})}) for seed in range(4)]
    assert 0 < site.answer({"kind": "hello", "experiment": seeds[0].toml()}, b"")[0]["examples"] < 150
    for other in seeds[1:]:
        with pytest.raises(Refused, match="reads rows in a way"):
            site.answer({"kind": "hello", "experiment": other.toml()}, b"")


def test_a_seed_that_decides_nothing_about_a_sites_rows_is_its_peoples_to_allow(tmp_path):
    for name, said in (("none held out", {}), ("by a seed of its own", {"held_out": 0.5, "seed": {"data": 3}})):
        chosen = csv_site(tmp_path / name, [], **said)
        asking = Server.__new__(Server)
        asking.folder, asking.experiment = tmp_path / name / "north", chosen
        accept(asking, **{"run.seed": {"min": 0, "max": 10**6}})
        other = chosen.model_copy(update={"run": chosen.run.model_copy(update={"seed": 7})})
        first, second = (
            Site(asking.folder).answer({"kind": "hello", "experiment": one.toml()}, b"")[0] for one in (chosen, other)
        )
        assert first == second


def test_the_log_of_rows_that_nothing_is_declared_of_quotes_no_cell_and_no_span(tmp_path):
    chosen = csv_site(tmp_path, ["-7777,2,3,4,1"], numeric={"b": [0, 10]})
    site, log = tmp_path / "north", tmp_path / "north" / "log.jsonl"
    hello = {"kind": "hello", "experiment": chosen.toml()}
    with pytest.raises(Refused, match=UNSAID):
        Site(site).answer(hello, b"")
    rows = (site / "records.csv").read_text().splitlines()
    (site / "records.csv").write_text(
        "\n".join(["-7777,2,3,4,1", *rows[1:]]) + "\n"
    )  # and without a first line of names
    with pytest.raises(Refused, match=UNSAID):
        Site(site).answer(hello, b"")
    first, second = log.read_text().splitlines()
    assert "do not say how to read" in first
    assert "begins with a record" in second
    assert "7777" not in first + second


def test_what_reading_changed_stays_in_the_sites_own_log(tmp_path):
    chosen = csv_site(
        tmp_path, ["9999,2,3,4,1"], numeric={"a": [0, 10], "b": "unscaled", "c": "unscaled", "d": "unscaled"}
    )
    said, body = Site(tmp_path / "north").answer({"kind": "hello", "experiment": chosen.toml()}, b"")
    assert "clamped 1 value of 'a'" in (tmp_path / "north" / "log.jsonl").read_text()
    assert "clamped" not in repr((said, body))


def test_the_log_of_a_file_that_cannot_be_read_quotes_no_cell_of_it(tmp_path):
    chosen = csv_site(tmp_path, [f"1,2,3,4,{MARK}"])
    hello = {"kind": "hello", "experiment": chosen.toml()}
    path, log = tmp_path / "north" / "records.csv", tmp_path / "north" / "log.jsonl"
    whole = path.read_text()
    for text in (
        whole,
        whole.replace(f"1,2,3,4,{MARK}", f"1,{MARK},3,4,0"),
        whole.replace(f"1,2,3,4,{MARK}", f"{MARK}"),
        whole.replace("a,b,c,d,kind", f"a,b,c,{MARK},kind"),
        whole.replace("a,b,c,d,kind", f"a,b,c,d,kind,{MARK}"),
        f"{MARK},{MARK},c,d,kind\n",
    ):
        path.write_text(text)
        with pytest.raises(Refused, match=UNSAID) as told:
            Site(tmp_path / "north").answer(hello, b"")
        assert MARK not in str(told.value)
    assert len(log.read_text().splitlines()) == 6
    assert MARK not in log.read_text()


# --- consent ---


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("experiments = [", "experiments = [] #", "not among those"),
        ("most_rounds = 3", "most_rounds = 2", "asks for 3 rounds; the site allows 2"),
        ("delta = 1e-05", "delta = 1e-06", "asks for delta 1e-05; the site allows 1e-06"),
        ("# most_parameters = 20000000", "most_parameters = 100 #", "650 parameters; the site allows 100"),
        ('unit = "record"', 'unit = "client"', "asks for a budget per record"),
        ("epsilon = 1.0", "epsilon = 0.5", "asks for epsilon 1; the site allows 0.5"),
    ],
)
@pytest.mark.parametrize("restart", [False, True])
def test_consent_that_is_withdrawn_in_mid_run_counts_from_the_next_question_on(server, old, new, words, restart):
    asking = server()
    asking.agree()
    asking.train(0)
    asking.budget(old, new)
    if restart:
        asking.restart()
    for round in (0, 1):  # a kept answer, and a new one
        with pytest.raises(Refused, match=words):
            asking.train(round)
    assert asking.charges() == [0]


def test_limits_that_changed_void_what_was_accepted_under_them(server):
    asking = server()
    asking.agree()
    before = asking.site._held[RUN]
    asking.train(0)
    assert asking.site._held[RUN] is before
    asking.budget("epsilon = 1.0", "epsilon = 3.0")
    asking.train(1)
    after = asking.site._held[RUN]
    assert (before.client.budget.epsilon, after.client.budget.epsilon) == (
        1.0,
        3.0,
    )  # the budget that its ledger is held to


def test_more_sites_than_the_site_allows_are_refused_before_its_rows_are_read(server, monkeypatch):
    asking = server()
    more = {"names": ["client-0", "client-1", "c"], "sizes": [60, 60, 60], "epsilons": [1.0, 2.0, 3.0]}
    asking.budget("# most_clients = 10000", "most_clients = 2 #")
    monkeypatch.setattr("tacit.deploy.site.agreement.read_rows", lambda *args, **options: pytest.fail("they were read"))
    with pytest.raises(Refused, match="names 3 sites; the site allows 2"):
        asking.agree(roster=asking.roster.record() | more)


def test_the_settings_that_a_budget_file_proposes_accept_its_own_experiment_and_no_other(server):
    asking = server(train={"views": None})
    path = asking.folder / "budget.toml"
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("experiments = ["))
    proposed = [
        line.removeprefix("# ") for line in lines[start + 1 :] if " = [" in line or line == "# [accept.settings]"
    ]
    path.write_text("\n".join([*lines[:start], *proposed]) + "\n")
    asking.agree()
    with pytest.raises(Refused, match=r"asks for train\.local_steps = 3"):
        asking.hello(experiment(train={"local_steps": 3}))


# --- nothing the server sends is code, a path or a device ---


def changed(asking, **changes):
    """An experiment that differs from the accepted one, under a site that accepts by settings as its file proposes."""
    accept(asking)
    return experiment(**changes)


@pytest.mark.parametrize(
    "name", ["http.server:test", "os:abort", "antigravity:fly", "tacit.algorithms.rules.mean:mean"]
)
@pytest.mark.parametrize("section", ["aggregate", "model", "data"])
def test_code_that_an_experiment_names_is_not_imported(server, name, section):
    asking = server()
    key = "rule" if section == "aggregate" else "name"
    chosen = changed(asking, **{section: {key: name, "speed": 3}})
    accept(asking, chosen=chosen)  # even a setting that is allowed names no code
    with pytest.raises(Refused, match=r"does not list in accept\.code"):
        asking.hello(chosen)
    with pytest.raises(Refused, match=r"does not list in accept\.code"):
        asking.agree(experiment=chosen.toml())


def test_listed_code_runs_only_while_its_file_is_the_listed_one(tmp_path, monkeypatch):
    place = tmp_path / "ours" / "own_net.py"
    place.parent.mkdir()
    place.write_text("from tacit.parts.models import logr as net\n")
    monkeypatch.syspath_prepend(str(place.parent))
    asking = Server(tmp_path / "site", experiment(model={"name": "own_net:net"}))
    path = asking.folder / "budget.toml"
    path.write_text(f'{path.read_text()}\n[accept.code]\n"own_net:net" = "{code_digest("own_net:net")}"\n')
    asking.agree()
    asking.train(0)
    place.write_text(place.read_text() + "# another\n")
    with pytest.raises(Refused, match="is another than the one"):
        asking.train(1)


OPTIONS = [
    ({"aggregate": {"beta": 0.1}}, "aggregate.beta"),
    ({"model": {"width": 10**9}}, "model.width"),
    ({"data": {"speed": 3}}, "data.speed"),
]


@pytest.mark.parametrize(("changes", "place"), OPTIONS)
def test_options_are_held_against_the_limits_before_any_part_is_asked_about_them(server, changes, place):
    asking = server()
    with pytest.raises(Refused, match=f"sets {place}|reads rows in a way"):
        asking.hello(changed(asking, **changes))


@pytest.mark.parametrize(("changes", "place"), OPTIONS)
def test_an_option_that_a_site_accepts_and_no_part_takes_is_refused_and_costs_nothing(server, changes, place):
    asking = server()
    chosen = changed(asking, **changes)
    accept(asking, chosen=chosen)
    with pytest.raises(Refused):
        asking.agree(experiment=chosen.toml())
    assert f"Unknown key '{place}'" in asking.log()[-1]["text"]
    assert asking.charges() == []


@pytest.mark.parametrize("value", ["[" * 900 + "]" * 900, "{a = " * 30 + "1" + "}" * 30, "2026-11-15", "nan"])
@pytest.mark.parametrize("section", ["data", "model", "aggregate"])
def test_an_option_of_any_shape_is_refused_like_any_other(server, section, value):
    asking = server()
    with pytest.raises(Refused):
        asking.ask(
            kind="hello",
            experiment=f"{asking.experiment.toml()}\n".replace(f"[{section}]", f"[{section}]\nodd = {value}"),
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": {"device": "cuda:7"}}, "sets run.device|device 'cuda:7'"),
        ({"run": {"device": "meta"}}, "sets run.device|device 'meta'"),
        ({"data": {"name": "mnist", "path": "/etc"}}, "opens no folder"),
        ({"data": {"name": "mnist"}}, "reads rows in a way|cannot take part"),
        ({"privacy": {"epsilon": {"file": "/etc/passwd"}}}, "opens no file"),
        ({"train": {"local_steps": 10**9}}, "asks for 1000000000 local steps"),
        ({"train": {"local_steps": {"epochs": 10**9}}}, "asks for 1000000000 local epochs"),
        ({"train": {"sampling_rate": None, "batch_size": 10**9}}, "examples in a batch"),
        ({"train": {"physical_batch": 10**9}}, "examples at a time"),
        ({"train": {"views": 10**6}}, "views"),
        ({"train": {"rounds": 10**7}}, "rounds"),
        ({"data": {"clients": 10**8}}, "clients|reads rows"),
    ],
)
@pytest.mark.parametrize("trusting", [False, True])
def test_what_costs_memory_opens_paths_or_uses_devices_is_refused_before_anything_is_built(
    server, monkeypatch, changes, words, trusting
):
    asking = server()
    chosen = experiment(**changes)
    if trusting:  # the site's people let every setting in, without a thought
        accept(asking, chosen=chosen, **{"run.device": None})

    def built(*args, **options):
        raise AssertionError("built")

    monkeypatch.setattr("tacit.deploy.site.agreement.assemble", built)
    with pytest.raises(Refused, match=f"{words}|is not among those"):
        asking.agree(experiment=chosen.toml())


def test_a_model_that_is_too_large_is_refused_before_it_is_made(server, monkeypatch):
    asking = server(model={"name": "mlp"})
    asking.budget("# most_parameters = 20000000", "most_parameters = 1000 #")
    monkeypatch.setattr("tacit.parts.models.build", lambda *args, **options: pytest.fail("it was made"))
    with pytest.raises(Refused, match="parameters; the site allows 1000"):
        asking.agree()


@pytest.mark.parametrize(
    "error", [SystemExit(3), MemoryError(), RecursionError(), GeneratorExit(), OverflowError(MARK)]
)
def test_whatever_goes_wrong_the_site_goes_on_and_says_nothing(server, monkeypatch, error):
    asking = server()

    def fails(*args, **options):
        raise error

    asking.site = Site(asking.folder, accepting=fails)
    with pytest.raises(Refused, match=UNSAID):
        asking.agree()
    assert asking.log()[-1]["verdict"] == "failed"
    assert MARK not in asking.log()[-1]["text"]
    asking.restart()
    asking.agree()


# --- crafted messages ---

NESTED = "[" * 100_000


@pytest.mark.parametrize(
    "ask",
    [
        {"kind": ["hello"]},
        {"kind": {"a": 1}},
        {"kind": 7},
        {"kind": "hello", "experiment": 7},
        {"kind": "hello", "experiment": None},
        {"kind": "hello", "experiment": f"name = {NESTED}"},
        {"kind": "hello", "experiment": f"a{'.a' * 20_000} = 1"},
        {"kind": "hello", "experiment": "name = 1"},
        {"kind": "hello", "experiment": "[run]\nself = 1"},
        {"kind": "hello", "experiment": "self = 1"},
        {"kind": "hello", "experiment": "[train]\nrounds = 1e400"},
        {"kind": "hello", "experiment": f"[train]\nrounds = {'9' * 5000}"},
        {"kind": "hello", "experiment": "[data]\nname = []"},
        {"kind": "hello", "experiment": "[privacy]\nepsilon = nan\nkind = 'local'"},
        {"kind": "hello", "experiment": "\x00"},
        {"kind": "agree", "run": RUN},
        {"kind": "agree", "run": RUN, "experiment": "", "roster": 7, "terms": 7},
        {"kind": "agree", "run": 7, "experiment": "", "roster": {}, "terms": {}},
        {"kind": "train", "run": RUN, "round": float("inf")},
        {"kind": "train", "run": RUN, "round": float("nan")},
        {"kind": "train", "run": RUN, "round": 10**400},
        {"kind": "train", "run": RUN, "round": True},
        {"kind": "train", "run": RUN, "round": "0"},
        {"kind": "train", "run": ["a"], "round": 0},
        {"kind": "open", "run": RUN, "round": 0, "group": {"a": []}},
        {"kind": "open", "run": RUN, "round": -1, "group": "all"},
    ],
)
def test_no_message_ends_a_site(server, ask):
    asking = server()
    for agreed in (False, True):
        if agreed:
            asking.agree()
        with pytest.raises((Refused, BudgetExhausted)):
            asking.ask(b"\xff" * 100, **ask)
    assert asking.charges() == []
    asking.train(0)


@pytest.mark.parametrize("field", ["names", "sizes", "epsilons", "delta", "unit"])
@pytest.mark.parametrize(
    "value", [None, 7, "a", [], [[]], {}, [None, None], [1e400, 1], [-1, 0], ["x", "x"], float("nan")]
)
def test_a_crafted_roster_is_refused(server, field, value):
    asking = server()
    with pytest.raises(Refused):
        asking.agree(roster=asking.roster.record() | {field: value})
    assert asking.log()[-1]["verdict"] == "refused"


@pytest.mark.parametrize("value", [None, "a", [], {}, float("nan"), -1, True, 10**400], ids=shown)
@pytest.mark.parametrize("field", ["event", "epsilon", "rounds", "parameters", "frozen", "asked"])
def test_crafted_terms_are_refused(server, field, value):
    asking = server()
    asking.agree()
    other = asking.terms | {field: value}  # a round's question names none: those that were agreed hold
    for ask in (lambda: asking.agree(terms={field: value}), lambda: asking.train(0, terms=other)):
        with pytest.raises(Refused):
            ask()
        assert asking.log()[-1]["verdict"] == "refused"
    assert asking.charges() == []


def crafted_bodies(params):
    good = pack(Message("server", {"params": params}))
    head = int.from_bytes(good[:8], "little")
    yield b""
    yield good[:-1]
    yield good + b"\0"
    yield b"\xff" * 8 + good[8:]
    deep = json.dumps({"__metadata__": {"tacit": NESTED}}).encode()
    yield len(deep).to_bytes(8, "little") + deep
    for own in (NESTED, "7", "{}", '{"sender": 7, "facts": {}}', '{"sender": "s", "facts": []}', '{"sender": "s"}'):
        record = json.loads(good[8 : 8 + head]) | {"__metadata__": {"tacit": own}}
        text = json.dumps(record).encode()
        yield len(text).to_bytes(8, "little") + text + good[8 + head :]
    yield pack(Message("server", {"params": params.double()}))
    yield pack(Message("server", {"params": params[:-1]}))
    yield pack(Message("server", {"params": params.view(1, -1)}))
    yield pack(Message("server", {"update": params}))


def test_crafted_parameters_are_refused_and_cost_nothing(server):
    asking = server()
    asking.agree()
    for body in crafted_bodies(asking.parts.params):
        with pytest.raises(Refused):
            asking.ask(body, kind="train", run=RUN, round=0)
        assert asking.log()[-1]["verdict"] == "refused"
    assert asking.charges() == []


def test_a_message_of_somebody_else_is_refused_and_logged(server):
    asking = server()
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    for records in ({}, {"tacit": ConfigRecord({"json": 7})}, {"tacit": ConfigRecord({"json": NESTED})}):
        before = len(asking.log()) if (asking.folder / "log.jsonl").exists() else 0
        message = FlowerMessage(RecordDict(records), 1, "train", ttl=10)
        message.metadata.__dict__["_message_id"] = "1"
        assert respond(asking.site, message).has_error()
        assert asking.log()[before]["verdict"] == "refused"


def test_a_refusal_says_whether_it_is_for_ever_for_now_or_for_want_of_budget(server, monkeypatch):
    asking = server()
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def kind(**ask):
        message = sent_question(ask, asking.body(), node=1, seconds=10, nonce=b"n")
        message.metadata.__dict__["_message_id"] = "1"
        reply = respond(asking.site, message)
        return kind_of_refusal(reply.error) if reply.has_error() else None

    train = {"kind": "train", "run": RUN, "round": 0}
    assert kind(**train) is Refusal.LATER  # there is no agreement yet
    asking.agree()
    assert kind(**train | {"round": 3}) is Refusal.NEVER  # three rounds were agreed
    with monkeypatch.context() as patch:
        patch.setattr("tacit.privacy.ledger.ledger.Ledger.admit", lambda *args, **options: [])
        assert kind(**train) is Refusal.UNPAID
        patch.setattr("tacit.privacy.ledger.ledger.Ledger.admit", lambda *args, **options: 1 / 0)
        assert kind(**train) is Refusal.LATER  # whatever went wrong may be mended
    assert kind(**train) is None


# --- files ---


def test_whatever_the_umask_nobody_else_can_read_a_sites_files(tmp_path):
    old = os.umask(0)
    try:
        asking = Server(tmp_path / "site", experiment(privacy={"kind": "central", "epsilon": 1.0}))
        (asking.folder / "left.txt").write_text("as it was")
        asking.restart()
        asking.agree(releases=3)
        asking.train(0)
    finally:
        os.umask(old)
    places = [asking.folder, *asking.folder.rglob("*")]
    assert any(place.suffix == ".answer" for place in places)
    for place in places:
        assert stat.S_IMODE(place.stat().st_mode) & layout.OTHERS == 0, place


def test_a_server_cannot_fill_a_sites_disk_with_runs(server):
    asking = server()
    asking.budget("most_rounds = 3", "most_rounds = 3\nmost_runs = 2")
    for number in range(2):
        asking.agree(run=f"{number:032x}")
    with pytest.raises(Refused, match="asks for 3 runs of this site; the site allows 2"):
        asking.agree(run=f"{2:032x}")
    asking.agree(run=f"{1:032x}")
    assert len(asking.site._held) <= 2


def test_what_a_site_is_promised_says_that_the_server_gives_the_start(server):
    asking = server()
    asking.agree()
    (promise,) = asking.folder.rglob("promise.txt")
    assert START in promise.read_text("utf-8")
