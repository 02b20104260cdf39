"""A site's own limits: what it is asked for is held against its budget file and its agreement, whoever asks."""

import json
import math
import os
import sqlite3
from functools import partial

import pytest
import torch
from redteam.lying_server import RUN, Server, accept, experiment

import tacit
from tacit.deploy.site import consent, limits
from tacit.deploy.site.consent import digest, read_experiment
from tacit.deploy.site.layout import read_settings
from tacit.deploy.site.limits import Demand, Limits, hold, limit, make_site, most, read_limits
from tacit.deploy.site.site import UNSAID, Site
from tacit.errors import BadInput, BudgetExhausted, Refusal, Refused
from tacit.training.flat import flatten
from tacit.types import Message
from tacit.wire import pack, unpack


@pytest.fixture
def server(tmp_path):
    def make(**changes):
        return Server(tmp_path / "site", experiment(**changes))

    return make


def refused(server, words, ask, *args, **options):
    """The site refuses in these words, logs them, and is charged nothing."""
    before = server.charges()
    with pytest.raises((Refused, BudgetExhausted), match=words):
        ask(*args, **options)
    assert server.log()[-1]["verdict"] == "refused"
    assert server.charges() == before


def test_a_site_says_who_it_is_and_nothing_of_its_rows(server):
    said = server().hello()
    assert said["site"] == "client-0"
    assert set(said) == {"site", "examples", "shape", "classes", "epsilon", "unit", "tacit", "torch"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"event": "less"}, "asks for less noise"),
        ({"epsilon": 9.0}, "asks for epsilon 9; the site allows 1"),
        ({"rounds": 30}, "asks for 30 rounds; 3 were agreed"),
        ({"parameters": 7}, "asks for a model of 7 parameters; 650 were agreed"),
        ({"frozen": "0" * 32}, "is not that of the model which this site builds"),
    ],
)
def test_a_server_that_asks_for_more_than_agreed_is_refused(server, change, words):
    asking = server()
    asking.agree()
    if "event" in change:
        record = json.loads(asking.terms["event"])
        change = {"event": json.dumps(record | {"noise_multiplier": record["noise_multiplier"] * 2 / 3})}
    refused(asking, words, asking.agree, terms=change)
    refused(asking, "cannot be read", asking.train, 0, **change)  # a round names none: those that were agreed hold


def test_a_round_that_was_not_agreed_in_this_form_is_refused(server):
    asking = server()
    refused(asking, "no agreement", asking.train)
    asking.agree()
    refused(asking, "asks for round 4; 3 rounds were agreed", asking.train, 3)
    refused(asking, "The round is -1, not a whole number from 0", asking.train, -1)
    refused(asking, "other parameters", asking.train, 0, body=asking.parameters(torch.zeros(3)))
    refused(asking, "other parameters", asking.train, 0, body=pack(Message("server", {})))
    refused(asking, "is not bytes", asking.train, 0, body="text")
    asking.budget("# most_bytes = ", "most_bytes = 100 # ")
    refused(asking, "sends a question of [0-9]+ bytes; the site allows 100", asking.train, 0)


def test_a_second_opening_of_a_round_is_refused_and_a_repeated_question_gets_the_same_bytes(server):
    asking = server()
    asking.agree()
    first = asking.train(0)
    assert asking.train(0) == first
    asking.restart()
    assert asking.train(0) == first
    assert asking.charges() == [0]
    other = asking.body(params=asking.parts.params + 1)
    refused(asking, "answered already: another answer to it would be a second release", asking.train, 0, body=other)
    asking.train(1)
    refused(asking, "asks for round 1 again", asking.train, 0)


def test_the_charge_is_on_disk_before_anything_is_trained(server, monkeypatch):
    asking = server()
    asking.agree()
    seen = []
    real = asking.parts.algorithm.__class__.train

    def watched(self, *args):
        seen.append(asking.charges())
        return real(self, *args)

    monkeypatch.setattr(asking.parts.algorithm.__class__, "train", watched)
    sent = unpack(asking.train(0))
    assert seen == [[0]]
    assert (sent.sender, set(sent.facts)) == ("client-0", {"examples", "noise_std", "epsilon"})


def test_a_crash_after_the_charge_costs_one_round_and_is_said(server, monkeypatch):
    asking = server()
    asking.agree()
    monkeypatch.setattr(
        "tacit.deploy.site.replies.keep", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(Refused):
        asking.train(0)
    monkeypatch.undo()
    asking.restart()
    asking.train(0)
    assert asking.charges() == [0, 0]
    assert any(line["verdict"] == "lost" and "charged again" in line["text"] for line in asking.log())
    asking.train(1)
    refused(asking, "budget .* does not pay for round 3", asking.train, 2)


def test_the_ledger_stops_a_run_that_the_budget_does_not_pay_for(server):
    asking = server(privacy={"noise_multiplier": 0.3})
    asking.agree()
    refused(asking, r"budget \(epsilon 1, delta 1e-05 per record\) does not pay for round 1", asking.train)


@pytest.mark.parametrize(
    "changes", [{"train": {"rounds": 4}}, {"run": {"seed": 4}}, {"privacy": {"epsilon": [5.0, 5.0]}}]
)
def test_an_experiment_that_was_not_accepted_is_refused(server, changes):
    asking = server()
    refused(asking, "is not among those that the site's budget.toml accepts", asking.hello, experiment(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.name": ["mlp"]}, "asks for model.name = 'logr'; the site allows 'mlp'"),
        ({"train.rounds": {"max": 2}}, "asks for train.rounds = 3; the site allows at most 2"),
        ({"train.rounds": {"min": 4}}, "asks for train.rounds = 3; the site allows at least 4"),
        ({"privacy.kind": "central"}, "asks for privacy.kind = 'local'; the site allows 'central'"),
        ({"train.local_steps": None}, "sets train.local_steps = 2, which the site's budget.toml does not name"),
    ],
)
def test_settings_that_the_site_does_not_allow_are_refused(server, changes, words):
    asking = server()
    accept(asking, **changes)
    refused(asking, words, asking.hello)


def test_a_site_that_accepts_settings_and_lists_no_way_to_read_rows_lets_none_be_read(server):
    asking = server()
    accept(asking)
    asking.budget("\ndata = [", "\ndata = [] # [")
    refused(asking, "reads rows in a way", asking.hello)


def test_allowed_settings_let_a_new_experiment_in_but_never_beyond_the_frame(server):
    asking = server()
    frame = {"privacy.kind": ["local", "none", "distributed"], "train.rounds": {"max": 50}}
    accept(asking, **frame, **{"run.randomness": ["os", "seeded"]})
    assert asking.hello(experiment(train={"rounds": 5}))["site"] == "client-0"
    refused(asking, "asks for 21 rounds; the site allows 20", asking.hello, experiment(train={"rounds": 21}))
    refused(asking, "asks for delta 0.01; the site allows 1e-05", asking.hello, experiment(privacy={"delta": 0.01}))
    refused(asking, "noise from a seed that the server knows", asking.hello, experiment(run={"randomness": "seeded"}))
    refused(asking, "promises no privacy", asking.hello, experiment(privacy={"kind": "none"}))
    refused(asking, "would read the site's single report", asking.hello, experiment(privacy={"kind": "distributed"}))


def test_what_a_site_allows_is_allowed_to_the_last_and_nothing_beyond():
    """A limit that is ten times what its file says would let most of what a server asks through unseen."""
    asked = experiment(train={"rounds": 7, "local_steps": 5})
    delta = asked.privacy.run_delta
    most = {"most_rounds": 7, "most_steps": 5, "most_batch": 256, "most_clients": asked.data.clients}
    accept = {"experiments": [digest(asked)]}

    def allowed(**change):
        return Limits(**{"epsilon": 1.0, "delta": delta, "accept": accept, **most, **change})

    hold(allowed(), Demand(experiment=asked))
    larger = {"batch_size": 40, "physical_batch": 30, "local_steps": {"epochs": 9}}
    work = tacit.Experiment(data={"clients": 2}, train=larger, privacy={"kind": "none"})
    frame = {"experiments": [digest(work)]}
    for key, value, words in (
        ("most_batch", 39, "asks for 40 examples in a batch; the site allows 39"),
        ("most_steps", 8, "asks for 9 local epochs; the site allows 8"),
    ):
        with pytest.raises(Refused, match=words):
            hold(Limits(epsilon=1.0, delta=delta, trial=True, accept=frame, **{key: value}), Demand(experiment=work))
    for change, words in (
        ({"delta": math.nextafter(delta, 0)}, "asks for delta"),
        ({"most_rounds": 6}, "asks for 7 rounds; the site allows 6"),
        ({"most_steps": 4}, "asks for 5 local steps; the site allows 4"),
        ({"most_batch": 255}, "asks for 256 examples at a time; the site allows 255"),
        ({"most_clients": asked.data.clients - 1}, "clients; the site allows"),
    ):
        with pytest.raises(Refused, match=words):
            hold(allowed(**change), Demand(experiment=asked))


def test_a_roster_that_lies_about_the_site_is_refused(server):
    asking = server()
    record = asking.roster.record()
    refused(asking, "asks for epsilon 7", asking.agree, roster=record | {"epsilons": [7.0, 2.0]})
    refused(asking, "another size", asking.agree, roster=record | {"sizes": [1, 60]})
    refused(asking, "does not hold client-0 once", asking.agree, roster=record | {"names": ["a", "b"]})
    for lie in ({"delta": 1e-6}, {"unit": "client"}):
        refused(asking, "client-0 once, under the experiment's delta and unit", asking.agree, roster=record | lie)
    asking.agree()
    more = {"names": ["client-0", "client-1", "c"], "sizes": [60, 60, 60], "epsilons": [1.0, 2.0, 3.0]}
    refused(asking, "another experiment or other sites", asking.agree, roster=record | more)


@pytest.mark.parametrize("run", ["../../etc", "", "0" * 31, "Z" * 32])
def test_a_run_cannot_be_named_so_that_it_leaves_the_sites_folder(server, run):
    asking = server()
    refused(asking, "no run's name", asking.agree, run=run)


def test_what_goes_wrong_at_the_site_is_logged_there_and_not_told(server):
    asking = server()
    asking.agree()
    with pytest.raises(Refused, match="could not be read"):
        asking.train(0, body=b"not a message")
    with pytest.raises(Refused, match="nothing that a site does"):
        asking.site.answer({"kind": "dump"}, b"")
    path = asking.folder / "budget.toml"
    unreadable = (path.unlink, path.mkdir)
    invalid = (lambda: path.write_text("epsilon = "), lambda: path.write_text("epsilon = -1\ndelta=1e-5"))
    words = ("not valid TOML", "epsilon", "cannot be read by this site", "cannot be read by this site")
    for damage, logged in zip((*invalid, *unreadable), words, strict=True):
        damage()
        for ask in (asking.hello, asking.train):
            with pytest.raises(Refused, match=UNSAID):
                ask()
            assert asking.log()[-1]["verdict"] == "failed"
            assert logged in asking.log()[-1]["text"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('epsilon = "3"', "expected epsilon to be a number, got '3'"),
        ("epsilon = true", "expected epsilon to be a number"),
        ('most_rounds = "3"', "expected most_rounds to be a whole number of at least 1, got '3'"),
        ('answer_seconds = "60"', "expected answer_seconds to be a number"),
        ('trial = "no"', "expected trial to be true or false, got 'no'"),
        ("epsilom = 3.0", "unknown key 'epsilom'. Did you mean 'epsilon'?"),
        ("most_round = 3", "unknown key 'most_round'. Did you mean 'most_rounds'?"),
        ('accept.experiment = ["a"]', "unknown key 'accept.experiment'. Did you mean 'accept.experiments'?"),
        ('accept.settings."train.round" = 3', "unknown key 'train.round'. Did you mean 'train.rounds'?"),
    ],
)
def test_a_budget_file_with_a_text_for_a_number_or_a_misspelt_key_is_refused_in_one_sentence(tmp_path, line, words):
    good = {"epsilon": "epsilon = 3.0", "delta": "delta = 1e-5"}
    text = "\n".join({**good, line.split(" ")[0]: line}.values())
    if line.startswith("epsilom"):
        text = text.replace("epsilon = 3.0\n", "")
    (tmp_path / "budget.toml").write_text(text)
    with pytest.raises(BadInput) as caught:
        read_limits(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def refuse_in(hours, asked):
    """No question is answered in these hours."""
    if hours != "00-00":
        raise Refused(f"Nobody is answered from {hours[:2]} to {hours[3:]} hours.", Refusal.LATER)


class Guarded(Limits):
    """Limits with one more, which is one entry in one place."""

    quiet_hours: str = limit("00-00", refuse_in, line="when nobody is answered", pattern=r"^\d\d-\d\d$")


def test_a_new_limit_is_one_entry_and_holds_at_every_door(server, monkeypatch):
    asking = server()
    asking.agree()
    asking.train(0)
    monkeypatch.setattr(limits, "Limits", Guarded)
    asking.train(1)
    asking.budget("epsilon = 1.0", 'quiet_hours = "08-18"\nepsilon = 1.0')
    (asking.folder / "experiment.toml").write_text(asking.experiment.toml())
    last = {"body": asking.parameters(asking.parts.params), "kind": "keep", "run": RUN}
    alone = partial(asking.site.alone, run="1" * 32)
    doors = (
        asking.hello,
        asking.agree,
        partial(asking.train, 1),
        partial(asking.train, 2),
        partial(asking.ask, **last),
        alone,
    )
    for ask in doors:
        with pytest.raises(Refused, match="Nobody is answered from 08 to 18 hours"):
            ask()
    assert asking.charges() == [0, 1]
    make_site(asking.folder.parent / "new", asking.experiment, name="client-0", epsilon=1.0)
    assert (
        '# quiet_hours = "00-00"  # when nobody is answered'
        in (asking.folder.parent / "new" / "budget.toml").read_text()
    )


def test_a_value_of_the_right_type_is_refused_for_what_is_wrong_with_it(server, monkeypatch):
    monkeypatch.setattr(limits, "Limits", Guarded)
    asking = server()
    (asking.folder / "budget.toml").write_text('epsilon = 1.0\ndelta = 1e-5\nquiet_hours = "8-18"\n')
    with pytest.raises(BadInput, match="quiet_hours cannot be '8-18': string should match pattern"):
        limits.read_limits(asking.folder)


def test_an_experiment_is_checked_once_in_a_process_however_often_it_is_asked_about(server, monkeypatch):
    read_experiment.cache_clear()
    checked, real = [], consent.refuse_undeployable
    monkeypatch.setattr(consent, "refuse_undeployable", lambda experiment: checked.append(1) or real(experiment))
    asking = server()
    asking.hello()
    for restart in (False, True):
        if restart:
            asking.restart()
        asking.agree()
        for round in (0, 1):
            asking.train(round + 2 * restart) if round + 2 * restart < 3 else None
    assert len(checked) == 1


def test_a_site_file_with_a_misspelt_key_or_a_number_for_a_text_is_refused(tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\ndat = "records.csv"\n')
    with pytest.raises(BadInput, match=r"unknown key 'dat'\. Did you mean 'data'\?"):
        read_settings(tmp_path)
    (tmp_path / "site.toml").write_text('name = "north"\ndata = 3\n')
    with pytest.raises(BadInput, match="expected data to be a text, got 3"):
        read_settings(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not read the file")
def test_a_budget_file_of_somebody_else_is_named_with_the_user(server):
    asking = server()
    (asking.folder / "budget.toml").chmod(0o600)
    for place in (asking.folder, *asking.folder.parents):  # every user may pass down to it
        if place.stat().st_mode & 0o005 != 0o005:
            place.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(BadInput, match=r"cannot be read by user .* \(Permission denied\)"):
            read_limits(asking.folder)
    finally:
        os.seteuid(0)


def test_a_full_disk_releases_nothing(server, monkeypatch):
    asking = server()
    asking.agree()

    def full(self, paying):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("tacit.privacy.ledger.ledger.Ledger._charge", full)
    with pytest.raises(Refused, match=UNSAID):
        asking.train(0)
    assert "nothing was released" in asking.log()[-1]["text"]
    assert asking.charges() == []


def test_a_digest_covers_every_key():
    changes = [{"run": {"workers": 2}}, {"run": {"device": "cuda"}}, {"run": {"seed": 9}}, {"privacy": {"clip": 2.0}}]
    assert len({digest(experiment()), *(digest(experiment(**change)) for change in changes)}) == 5


def test_a_site_reads_its_own_file(tmp_path):
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    lines = ["a,b,c,d,kind", *(",".join(map(str, [*row, label])) for row, label in zip(x, y, strict=True))]
    (tmp_path / "test.csv").write_text("\n".join(lines[:1] + lines[1::3]) + "\n")
    data = {"name": "csv", "path": "unused.csv", "partition": "natural", "label": "kind", "classes": 3}
    data |= {"columns": ["a", "b", "c", "d"], "numeric": "unscaled"}
    chosen = experiment(
        data=data | {"test_path": str(tmp_path / "test.csv"), "clients": 20, "examples_per_client": None},
        privacy={"epsilon": 1.0},
    )
    make_site(tmp_path / "north", chosen, name="north", epsilon=1.0)
    hello = {"kind": "hello", "experiment": chosen.toml()}
    with pytest.raises(Refused, match=UNSAID):
        Site(tmp_path / "north").answer(hello, b"")
    (tmp_path / "north" / "records.csv").write_text("\n".join(lines) + "\n")
    said, _ = Site(tmp_path / "north").answer(hello, b"")
    assert (said["examples"], said["shape"], said["classes"]) == (150, [4], 3)
    (tmp_path / "north" / "records.csv").write_text("\n".join([*lines, "1,2,3,4,unheard"]) + "\n")
    with pytest.raises(Refused, match=UNSAID) as told:
        Site(tmp_path / "north").answer(hello, b"")
    assert "unheard" not in str(told.value)


def central(server, **changes):
    return server(privacy={"kind": "central", "epsilon": 1.0} | changes)


@pytest.mark.parametrize("releases", [1, 3])
def test_under_central_dp_a_server_cannot_talk_the_number_of_rounds_down(server, releases):
    asking = central(server)
    asking.agree(releases=releases)  # it pays for every round before it agrees
    assert asking.charges() == [0, 1, 2]
    with sqlite3.connect(asking.folder / "ledger.db") as book:
        book.execute("DELETE FROM charges WHERE round > 0")
    asking.restart()
    asking.agree(releases=releases)  # a payment that was cut short is made up
    asking.train(0)
    asking.restart()
    asking.train(2)
    assert asking.charges() == [0, 1, 2]


def test_under_central_dp_a_round_that_is_repeated_with_new_noise_is_paid_for_or_refused(server):
    asking = central(server, epsilon=50.0, noise_multiplier=2.0)
    asking.budget("epsilon = 1.0", "epsilon = 50.0")
    asking.terms["epsilon"] = 50.0
    asking.agree(releases=3)
    asking.agree(releases=4)
    assert asking.charges() == [0, 1, 2, 3]
    refused(asking, "does not pay for 996 more rounds", asking.agree, releases=1000)


def test_under_central_dp_a_round_that_the_ledger_does_not_admit_is_no_agreement(server, monkeypatch):
    asking = central(server)
    monkeypatch.setattr("tacit.privacy.ledger.ledger.Ledger.admit", lambda *args, **options: [])
    refused(asking, "does not pay for round 1", asking.agree, releases=3)


def test_a_budget_per_record_does_not_let_a_client_level_run_in(server):
    asking = central(server)
    asking.budget('unit = "client"', 'unit = "record"')
    refused(asking, "asks for a budget per client; the site's is per record", asking.agree, releases=3)


def last_word(server, params):
    return server.ask(pack(Message("server", {"params": params})), kind="keep", run=RUN)


def test_a_site_keeps_the_model_that_a_run_left_where_predict_reads_it(server):
    asking = server()
    asking.agree()
    before = asking.charges()
    params = torch.randn(650, generator=torch.Generator().manual_seed(1))
    assert last_word(asking, params) == ({}, b"")
    folder = asking.folder / "runs" / RUN / "model-common"
    predictor = tacit.load(folder)
    assert torch.equal(flatten(predictor.model), params)
    assert predictor.encoder.classes == tuple(map(str, range(10)))
    assert asking.charges() == before
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert last_word(asking, 2 * params) == ({}, b"")  # a run that was resumed ends once more
    assert torch.equal(flatten(tacit.load(folder).model), 2 * params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (torch.zeros(649), "sent other parameters"),
        (torch.zeros(650, dtype=torch.float64), "sent other parameters"),
        (torch.full((650,), float("nan")), "not finite"),
    ],
)
def test_a_last_word_that_is_not_the_agreed_model_is_not_kept(server, params, words):
    asking = server()
    asking.agree()
    refused(asking, words, last_word, asking, params)
    refused(asking, "cannot be read", asking.ask, b"no message", kind="keep", run=RUN)
    refused(asking, "exactly the parts", asking.ask, b"", kind="keep", run=RUN, round=3)
    assert not (asking.folder / "runs" / RUN / "model-common").exists()


def test_a_site_that_lowered_its_budget_still_gets_the_model_and_nothing_is_asked_of_it(server):
    asking = server()
    asking.agree()
    asking.train(0)
    asking.budget("epsilon = 1.0", "epsilon = 0.5")
    for restart in (False, True):
        if restart:
            asking.restart()
        assert last_word(asking, torch.zeros(650)) == ({}, b"")
        refused(asking, "asks for epsilon 1; the site allows 0.5", asking.train, 1)
    assert asking.charges() == [0]


def test_a_last_word_on_a_run_that_the_site_has_not_agreed_to_or_accepts_no_more_is_refused(server):
    asking = server()
    refused(asking, "no agreement on this run", last_word, asking, torch.zeros(650))
    refused(asking, "no run's name", asking.ask, b"", kind="keep", run="../../elsewhere")
    asking.agree()
    asking.budget("experiments = [", "experiments = [] # [")
    refused(asking, "not among those", last_word, asking, torch.zeros(650))


def test_a_limit_says_whether_the_question_may_be_asked_again_later():
    class Hourly(Limits):
        most_an_hour: int = limit(5, most("has asked {} times this hour", "runs", kind=Refusal.LATER))

    allowed = Hourly(epsilon=1.0, delta=1e-5)
    hold(allowed, Demand(runs=5))
    for demand, kind in ((Demand(runs=6), Refusal.LATER), (Demand(size=1 << 32), Refusal.NEVER)):
        with pytest.raises(Refused) as refusal:
            hold(allowed, demand)
        assert refusal.value.kind is kind
