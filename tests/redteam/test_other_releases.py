"""Releases that are no run of Tacit's, charged to the ledger of a site or of several runs: paid like runs, and never beyond."""

import contextlib
import csv
import io
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3

import dp_accounting
import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli import ledger as shown
from tacit.cli.app import app
from tacit.deploy.operate.site_page import site_data
from tacit.deploy.site.charges import event_of
from tacit.errors import BadInput, BudgetExhausted, LedgerError
from tacit.privacy.accounting import price
from tacit.privacy.ledger import disk, reader
from tacit.privacy.ledger.ledger import Ledger as Books

RELEASE = {"epsilon": 0.2, "delta": 1e-7, "unit": "record", "purpose": "table 3 of the annual report"}
HALF = {"privacy": {"delta_share": 0.5}}


@pytest.fixture
def site(server):
    """A server, and its one site: epsilon 1 and delta 1e-5 per record, of which a run takes half of delta."""
    return server(**HALF)


def rows(folder, table="seals"):
    with sqlite3.connect(folder / "ledger.db") as db:
        return db.execute(f"SELECT * FROM {table}").fetchall() if table in disk.tables_of(db) else []


def test_a_release_is_sealed_chained_and_added_by_basic_composition(site):
    book = tacit.Ledger(site.folder)
    paid = book.charge(**RELEASE)
    book.charge(**RELEASE | {"epsilon": 0.3, "purpose": "a count"})
    assert (paid.epsilon, paid.delta, paid.unit) == (0.2, 1e-7, "record")
    assert book.spent() == pytest.approx((0.5, 2e-7))
    assert book.left() == pytest.approx((0.5, 1e-5 - 2e-7))
    assert [one.purpose for one in reader.accounts(site.folder / "ledger.db")] == [RELEASE["purpose"], "a count"]
    link = ""
    for _, run, round, attempt, charges, chain, _ in rows(site.folder, "batches"):
        link = disk.chain(link, run, round, attempt, *["client-0"] * charges)
        assert link == chain
    assert disk.read_watermark(site.folder / disk.NAME) == (4, link)
    assert "table 3" in site.log()[-2]["text"]


def test_a_release_beyond_what_is_left_is_refused_and_nothing_is_written(site):
    book = tacit.Ledger(site.folder)
    for what in ({"epsilon": 1.1}, {"delta": 2e-5}):
        with pytest.raises(BudgetExhausted, match="Nothing was charged"):
            book.charge(**RELEASE | what)
    assert (site.folder / "ledger.db").read_bytes() == b""
    for _ in range(5):
        book.charge(**RELEASE)  # five times 0.2 is 1
    before = (site.folder / "ledger.db").read_bytes()
    with pytest.raises(
        BudgetExhausted, match=r"epsilon 1\.000 and delta 5e-07 are sealed, and this takes epsilon 0\.001"
    ):
        book.charge(**RELEASE | {"epsilon": 0.001})
    assert (site.folder / "ledger.db").read_bytes() == before


def test_a_later_run_has_that_much_less_and_an_earlier_one_is_counted(site):
    book = tacit.Ledger(site.folder)
    book.charge(**RELEASE | {"epsilon": 0.3})
    site.agree()
    promise = (site.folder / "runs" / ("0" * 32) / "promise.txt").read_text()
    assert "the epsilon of the whole run is at most 0.700" in promise
    assert "Other runs and releases of this site have sealed 0.300" in promise
    trained = 0
    with contextlib.suppress(BudgetExhausted):
        while trained < 3:
            site.train(trained)
            trained += 1
    assert 0 < trained < 3
    spent = book.spent()
    assert 0.3 < spent.epsilon <= 1.0 * (1 + 1e-9)
    with pytest.raises(BudgetExhausted):
        book.charge(**RELEASE | {"epsilon": 1.0 - spent.epsilon + 1e-6})


def test_a_run_is_refused_where_releases_have_left_nothing(site):
    tacit.Ledger(site.folder).charge(**RELEASE | {"epsilon": 1.0})
    with pytest.raises(BudgetExhausted, match="is used up"):
        site.agree()
    assert not (site.folder / "runs").exists()


def test_the_delta_of_releases_and_runs_adds_up_to_that_of_the_site(site):
    """A run takes privacy.delta times its share; what the releases beside it have taken of the site's delta is gone."""
    tacit.Ledger(site.folder).charge(**RELEASE | {"delta": 6e-6})
    with pytest.raises(BudgetExhausted, match="does not pay for"):
        site.agree()


def test_units_are_never_added(site):
    book = tacit.Ledger(site.folder)
    with pytest.raises(BadInput, match="is per record, and bounds no release per client"):
        book.charge(**RELEASE | {"unit": "client"})
    book.charge(**RELEASE | {"epsilon": 0.9})
    site.budget('unit = "record"', 'unit = "client"')
    assert book.spent() == (0.0, 0.0)
    book.charge(**RELEASE | {"unit": "client", "epsilon": 0.9})
    assert book.spent() == (0.9, 1e-7)
    sums = reader.at_one_site(reader.accounts(site.folder / "ledger.db"))
    assert sums == {"record": (0.9, 1e-7), "client": (0.9, 1e-7)}


def both(folder, go, results):
    go.wait()
    try:
        tacit.Ledger(folder).charge(**RELEASE | {"epsilon": 0.6})
        results.put("paid")
    except BudgetExhausted:
        results.put("refused")


def test_of_two_at_once_that_cannot_both_be_paid_one_is(site):
    tacit.Ledger(site.folder).charge(**RELEASE | {"epsilon": 0.1})
    context = multiprocessing.get_context("fork")
    go, results = context.Event(), context.Queue()
    started = [context.Process(target=both, args=(site.folder, go, results)) for _ in range(2)]
    for one in started:
        one.start()
    go.set()
    assert sorted(results.get(timeout=60) for _ in started) == ["paid", "refused"]
    for one in started:
        one.join()
    assert tacit.Ledger(site.folder).spent().epsilon == pytest.approx(0.7)


@pytest.mark.parametrize(("after", "spent"), [("_seal", 0.0), ("_charge", 0.0), ("write_watermark", 0.2)])
def test_a_kill_in_the_middle_leaves_the_whole_charge_or_none_and_never_less_than_was_released(site, after, spent):
    child = os.fork()
    if child == 0:
        where = disk if after == "write_watermark" else Books
        real = getattr(where, after)

        def dies(*args, **more):
            if after != "write_watermark":
                real(*args, **more)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(where, after, dies)
        tacit.Ledger(site.folder).charge(**RELEASE)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    book = tacit.Ledger(site.folder)
    assert book.spent().epsilon == spent
    assert len(rows(site.folder, "charges")) == len(rows(site.folder)) == (spent > 0)
    book.charge(**RELEASE)
    assert book.spent().epsilon == pytest.approx(spent + 0.2)


def test_a_restored_older_ledger_and_a_lost_one_are_refused(site):
    book = tacit.Ledger(site.folder)
    book.charge(**RELEASE)
    shutil.copy(site.folder / "ledger.db", site.folder / "monday.db")
    book.charge(**RELEASE)
    shutil.copy(site.folder / "monday.db", site.folder / "ledger.db")
    with pytest.raises(LedgerError, match="older copy"):
        book.charge(**RELEASE)
    (site.folder / "ledger.db").write_bytes(b"")
    with pytest.raises(LedgerError, match="is gone"):
        book.charge(**RELEASE)
    (site.folder / "ledger.db").unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        tacit.Ledger(site.folder)


def test_a_ledger_that_others_could_open_or_with_another_ones_secret_is_refused(site):
    book = tacit.Ledger(site.folder)
    book.charge(**RELEASE)
    secret = site.folder / "ledger.db.secret"
    secret.chmod(0o644)
    with pytest.raises(LedgerError, match="not yours alone"):
        book.charge(**RELEASE)
    secret.chmod(0o600)
    secret.write_text(json.dumps(json.loads(secret.read_text()) | {"key": "0" * 64}))
    with pytest.raises(LedgerError, match="secret of another ledger"):
        book.charge(**RELEASE)


def test_a_site_that_was_renamed_does_not_get_its_budget_once_more_for_releases(site):
    book = tacit.Ledger(site.folder)
    book.charge(**RELEASE | {"epsilon": 0.9})
    path = site.folder / "site.toml"
    path.write_text(path.read_text().replace('"client-0"', '"polar"'))
    with pytest.raises(LedgerError, match="calls the site polar"):
        book.charge(**RELEASE | {"epsilon": 0.9})


def test_naming_the_file_in_a_sites_folder_does_not_lead_past_its_budget_file(site):
    with pytest.raises(BadInput, match=r"which budget\.toml bounds"):
        tacit.Ledger(site.folder / "ledger.db", budget=tacit.Budget(100.0, 1e-2))
    with pytest.raises(BudgetExhausted):
        tacit.Ledger(site.folder / "ledger.db").charge(**RELEASE | {"epsilon": 1.5})


def test_of_a_copied_site_one_alone_is_charged(site, tmp_path):
    (site.folder / "node.pub").write_text("ssh-ed25519 the-key-of-client-0\n")
    shutil.copytree(site.folder, tmp_path / "copy")
    tacit.Ledger(site.folder).charge(**RELEASE)
    with pytest.raises(LedgerError, match="one budget twice"):
        tacit.Ledger(tmp_path / "copy").charge(**RELEASE)
    assert rows(tmp_path / "copy") == []


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"epsilon": -0.1}, "Expected epsilon > 0, got -0.1."),
        ({"epsilon": 0.0}, "Expected epsilon > 0, got 0.0."),
        ({"epsilon": float("nan")}, "Expected epsilon to be a finite number, got nan."),
        ({"epsilon": float("inf")}, "Expected epsilon to be a finite number, got inf."),
        ({"epsilon": "1"}, "Expected epsilon to be a finite number, got '1'."),
        ({"delta": -1e-7}, "Expected 0 < delta < 1, got -1e-07."),
        ({"delta": 1.0}, "Expected 0 < delta < 1, got 1.0."),
        ({"delta": float("nan")}, "Expected delta to be a finite number, got nan."),
        ({"unit": "house"}, "Expected unit to be one of record, person, client; got 'house'."),
        ({"purpose": "  "}, "begin it with a letter or a digit"),
        ({"purpose": "=HYPERLINK(1)"}, "begin it with a letter or a digit"),
        ({"purpose": "a\x1b[31mb"}, "not a printable text of at most 200 characters"),
        ({"purpose": "a\u202eb"}, "not a printable text of at most 200 characters"),
        ({"purpose": "a" * 201}, "not a printable text of at most 200 characters"),
        ({"purpose": 3}, "not a printable text of at most 200 characters"),
        ({"epsilon": None}, "give one of the two"),
        ({"event": dp_accounting.GaussianDpEvent(3.0)}, "give one of the two"),
        ({"epsilon": None, "event": dp_accounting.LaplaceDpEvent(3.0)}, "got a LaplaceDpEvent: give its epsilon and delta"),
        ({"epsilon": None, "event": dp_accounting.NoOpDpEvent()}, "got a NoOpDpEvent"),
        ({"epsilon": None, "event": "gaussian"}, "got a str"),
        ({"epsilon": None, "event": dp_accounting.GaussianDpEvent(0.0)}, "Expected noise_multiplier > 0"),
        ({"epsilon": None, "event": dp_accounting.GaussianDpEvent(3.0), "delta": 0.0}, "Expected 0 < delta < 1"),
        (
            {"epsilon": None, "event": dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(9.0), -3)},
            "whole number of releases between 0",
        ),
        (
            {"epsilon": None, "event": dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(9.0), 0)},
            "no release at all",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_charged_is_said_in_a_sentence_and_nothing_is_begun(site, what, words):
    with pytest.raises(BadInput) as error:
        tacit.Ledger(site.folder).charge(**RELEASE | what)
    assert words in str(error.value)
    assert (site.folder / "ledger.db").read_bytes() == b""


FORGED = [
    '{"event": "wish", "steps": 1}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 1.0, "steps": 0}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 1.0, "steps": -5}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 1.0, "steps": 1.0}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 1.0, "steps": true}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 2.0, "steps": 1}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 1.0, "sampling": 0.1, "steps": 1}',
    '{"event": "sampled-gaussian", "noise_multiplier": 9.0, "noise_multiplier": 99.0, "sampling_rate": 1.0, "steps": 1}',
    '{"event": "sampled-gaussian", "noise_multiplier": NaN, "sampling_rate": 1.0, "steps": 1}',
    '{"event": "sampled-gaussian", "noise_multiplier": 1e999, "sampling_rate": 1.0, "steps": 1}',
    '{"event": "sampled-gaussian", "noise_multiplier": "9", "sampling_rate": 1.0, "steps": 1}',
    '{"event": ["sampled-gaussian"], "steps": 1}',
    '{"event": "epsilon-delta", "epsilon": -1.0, "delta": 0.0, "steps": 1}',
    '{"event": "one-side", "split": "a", "side": "b", "of": "sampled-gaussian", "noise_multiplier": 9.0, "sampling_rate": 1.0,'
    ' "steps": 1}',
    '{"event": "integer-sum", "law": "skellam", "share_variance": 900.0, "shares": 1000000000000, "l2_squared": 9,'
    ' "dimension": 20, "slack": 0.0, "steps": 1}',
    "[" * 3000,
    "[]",
    "",
    '{"event": "sampled-gaussian"' + " " * 20_000 + "}",
]  # fmt: skip


@pytest.mark.parametrize("text", FORGED)
def test_a_forged_event_is_refused_in_a_sentence(site, tmp_path, text):
    path = tmp_path / "event.json"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        event_of(path)
    assert len(str(error.value)) < 600
    path.write_bytes(b"\xff")
    with pytest.raises(BadInput, match="cannot be read"):
        event_of(path)


def test_an_event_is_priced_as_a_runs_are_and_never_below(site, tmp_path):
    path = tmp_path / "event.json"
    path.write_text('{"event": "sampled-gaussian", "noise_multiplier": 30, "sampling_rate": 0.1, "steps": 20}')
    paid = tacit.Ledger(site.folder).charge(event=event_of(path), delta=1e-6, unit="record", purpose="a foreign run")
    loose = dp_accounting.rdp.RdpAccountant().compose(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(30.0)), 20
    )
    tight = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-5).compose(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(30.0)), 20
    )
    assert tight.get_epsilon(1e-6) * 0.99 <= paid.epsilon <= loose.get_epsilon(1e-6)
    assert paid.epsilon == reader.accounts(site.folder / "ledger.db")[0].used


def test_what_is_shown_of_a_purpose_is_printable_and_cut_even_if_the_ledger_was_forged(site):
    book = tacit.Ledger(site.folder)
    book.charge(**RELEASE | {"purpose": "a [bold]<b>table[/bold] 3"})
    with sqlite3.connect(site.folder / "ledger.db") as db:
        db.execute("UPDATE batches SET attempt = ? WHERE round = -3", ("[bold]\x1b[31m\u202e<script>" + "a" * 10_000,))
    lines = CliRunner().invoke(app, ["ledger", "show", str(site.folder)]).output
    assert "\x1b[31m" not in lines
    assert "\u202e" not in lines
    assert "[bold]?[31m?<script>" in lines
    (run,) = site_data(site.folder)["runs"]
    assert run["purpose"].startswith("[bold]?[31m?<script>")
    assert len(run["purpose"]) == disk.MOST_PURPOSE


def test_it_is_shown_beside_runs_and_exported(site):
    tacit.Ledger(site.folder).charge(**RELEASE)
    site.agree()
    site.train(0)
    said = CliRunner().invoke(app, ["ledger", str(site.folder)]).output
    assert "1 and 1 other" in said
    assert RELEASE["purpose"] in said
    (other, mine) = csv.DictReader(io.StringIO(shown.as_csv(site.folder)))
    assert (other["purpose"], mine["purpose"]) == (RELEASE["purpose"], "")
    assert list(shown.faults(site.folder, delta=None)) == []
    site.budget("epsilon = 1.0", "epsilon = 0.1")
    assert any("more than the 0.1 of budget.toml" in text for text in shown.faults(site.folder, delta=None))


def test_the_command_charges_refuses_with_exit_code_2_and_prints_json(site, tmp_path):
    def call(*words):
        done = CliRunner().invoke(app, ["ledger", "charge", str(site.folder), *words])
        return done.output, done.exception

    said, wrong = call("--epsilon", ".2", "--delta", "1e-7", "--unit", "record", "--for", "table 3")
    assert wrong is None
    assert said == (
        "Charged: epsilon 0.200 and delta 1e-07 per record for table 3. Sealed in all: epsilon 0.200 of 1, delta 1e-07 of 1e-05.\n"
    )
    _, wrong = call("--epsilon", "3", "--unit", "record", "--for", "too much")
    assert isinstance(wrong, BudgetExhausted)
    said, _ = call("--epsilon", ".2", "--unit", "record", "--for", "table 4", "--json")
    assert json.loads(said)["left"]["epsilon"] == pytest.approx(0.6)
    (tmp_path / "event.json").write_text('{"event": "epsilon-delta", "epsilon": 0.1, "delta": 1e-7, "steps": 2}')
    said, wrong = call("--event", str(tmp_path / "event.json"), "--unit", "record", "--for", "two tables")
    assert "epsilon 0.200 and delta 2e-07 per record for two tables" in said


def test_a_job_of_many_rounds_is_charged_once_at_its_joint_price(site):
    many = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(60.0), 4)
    paid = tacit.Ledger(site.folder).charge(
        event=many, delta=1e-6, unit="record", purpose="another platform's training"
    )
    twice = dp_accounting.GaussianDpEvent(30.0)  # what four of 60 are
    assert paid.epsilon == pytest.approx(price.epsilon(((twice, 1),), delta=1e-6), rel=1e-9)
    (account,) = reader.accounts(site.folder / "ledger.db")
    assert (account.releases, account.most, account.used, account.sealed) == (1, 1, paid.epsilon, paid.epsilon)


def simulated(folder, *, ledger, epsilon=3.0):
    return tacit.run(
        tacit.Experiment(
            data={"clients": 3, "examples_per_client": 40},
            train={"rounds": 2, "local_steps": 2, "sampling_rate": 0.5},
            privacy={"kind": "local", "epsilon": epsilon, "ledger": str(ledger), "delta_share": 0.3},
        ),
        out=folder,
        page=False,
    )


def test_a_simulations_ledger_is_bounded_by_the_budget_that_is_said_and_later_runs_have_less(tmp_path):
    first = simulated(tmp_path / "one", ledger=tmp_path / "shared.db", epsilon=1.0)
    with pytest.raises(BadInput, match="Nothing bounds"):
        tacit.Ledger(tmp_path / "shared.db").charge(**RELEASE)
    book = tacit.Ledger(tmp_path / "shared.db", budget=tacit.Budget(3.0, 1e-5))
    spent = book.spent().epsilon
    assert spent >= first.guarantee.epsilon_max
    book.charge(**RELEASE | {"epsilon": 1.0})  # of every client
    tacit.Ledger(tmp_path / "shared.db", budget=tacit.Budget(3.0, 1e-5), client="client-1").charge(**RELEASE)
    assert book.spent().epsilon == pytest.approx(spent + 1.2)
    with pytest.raises(BudgetExhausted):
        book.charge(**RELEASE | {"epsilon": 3.0 - spent - 1.2 + 1e-6})
    second = simulated(tmp_path / "two", ledger=tmp_path / "shared.db")
    others = second.guarantee.others
    assert (others.runs, others.releases) == (3, 2)
    assert others.epsilon <= 3.0 * (1 + 1e-9)
    assert (
        second.guarantee.epsilon_max <= 3.0 - 1.0 - min(one.sealed for one in reader.accounts(first.ledger.path)) + 1e-9
    )
    assert "Together with the 1 other run and 2 other releases of its ledger" in second.sentence
    assert list(shown.faults(tmp_path / "shared.db", delta=None)) == []


def test_a_run_without_a_shared_ledger_can_be_charged_afterwards_too(tmp_path):
    experiment = tacit.Experiment(
        data={"clients": 2, "examples_per_client": 40},
        train={"rounds": 1, "local_steps": 1},
        privacy={"kind": "local", "epsilon": 3.0},
    )
    done = tacit.run(experiment, out=tmp_path / "run", page=False)
    book = tacit.Ledger(done.out, budget=tacit.Budget(50.0, 1e-3))
    book.charge(**RELEASE)
    assert not (done.out / "ledger.db.mark").exists()
    assert book.spent().delta == pytest.approx(1e-5 + 1e-7)


def test_a_site_goes_on_with_a_run_that_was_sealed_before_a_release(site):
    site.agree()
    site.train(0)
    left = tacit.Ledger(site.folder).left()
    if left.epsilon > 0.01:
        tacit.Ledger(site.folder).charge(**RELEASE | {"epsilon": left.epsilon})
    site.train(1)
    with pytest.raises(BudgetExhausted):
        site.agree(run="1" * 32)
