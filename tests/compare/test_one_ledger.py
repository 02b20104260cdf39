"""Comparisons whose runs share a ledger."""

import pytest
import ready

from tacit.errors import BadInput, BudgetExhausted
from tacit.lab.compare.grid import expand
from tacit.lab.compare.ledger import refuse_unpaid, sentences
from tacit.lab.grid import compare, with_ledger
from tacit.privacy.ledger.disk import ALL
from tacit.privacy.ledger.reader import read_before

NOISED = {
    "name": "small",
    "data": {"clients": 3, "examples_per_client": 40},
    "seed": {"data": 1},
    "train": {"rounds": 2, "local_steps": 2, "sampling_rate": 0.5},
    "privacy": {"kind": "local", "epsilon": 60, "noise_multiplier": 2.0},
}
RULES = {"aggregate.rule": ["mean", "weighted"]}


def cells(tmp_path, *, seeds=2, **privacy):
    values = NOISED | {"privacy": NOISED["privacy"] | privacy}
    return expand(with_ledger(values, RULES, seeds=seeds, ledger=tmp_path / "one.db"), RULES, seeds=seeds)


def test_all_runs_are_charged_to_the_one_ledger_and_within_the_clients_budgets(tmp_path):
    ledger = tmp_path / "one.db"
    with ready.workers():
        rows = compare(NOISED, RULES, seeds=2, out=tmp_path / "out", jobs=2, ledger=ledger)
    assert [len(row.ended) for row in rows] == [2, 2]
    before = read_before(ledger, unit="record")
    assert before.runs == 4
    used = sum((run.guarantee or {})["epsilon"]["max"] for row in rows for run in row.runs)
    assert used < before.of(ALL).epsilon <= 60
    assert before.of(ALL).delta == pytest.approx(1e-5)
    assert not list((tmp_path / "out").rglob("ledger.db"))
    said = (tmp_path / "out" / "table.md").read_text()
    assert f"The ledger {ledger} has 4 runs" in said
    assert "In total these 4 runs spend at most epsilon" in said


def test_a_grid_that_cannot_be_paid_for_as_a_whole_is_refused_before_anything_runs(tmp_path):
    one = expand(with_ledger(NOISED, {}, seeds=1, ledger=tmp_path / "one.db"), {}, seeds=1)
    refuse_unpaid(one, begun=False)
    tight = NOISED | {"privacy": NOISED["privacy"] | {"epsilon": 12}}
    with pytest.raises(BudgetExhausted, match=r"rounds\. Raise privacy\.epsilon .* Nothing was run\.$"):
        compare(tight, RULES, seeds=2, out=tmp_path / "out", ledger=tmp_path / "one.db")
    with pytest.raises(BudgetExhausted, match="delta 0 are left"):
        refuse_unpaid(cells(tmp_path, delta_share=0.5, epsilon=1000), begun=False)
    assert list(tmp_path.iterdir()) == []


def test_noise_that_follows_from_epsilon_is_refused_where_a_ledger_is_shared(tmp_path):
    with pytest.raises(BadInput, match=r"takes all that a shared ledger has left.*privacy\.noise_multiplier"):
        refuse_unpaid(cells(tmp_path, noise_multiplier=None), begun=False)


def test_seeds_that_deal_the_rows_out_anew_are_refused_where_a_ledger_is_shared(tmp_path):
    values = {key: value for key, value in NOISED.items() if key != "seed"}
    grid = expand(with_ledger(values, RULES, seeds=2, ledger=tmp_path / "one.db"), RULES, seeds=2)
    with pytest.raises(BadInput, match=r"same rows in the same hands.*set seed\.data"):
        refuse_unpaid(grid, begun=False)


def test_without_a_shared_ledger_nothing_is_looked_at():
    refuse_unpaid(expand(NOISED, RULES, seeds=2), begun=False)


def test_what_a_shared_ledger_holds_is_said_for_every_unit_that_runs_are_charged_in(tmp_path):
    ledger = tmp_path / "one.db"
    values = NOISED | {"train": {"rounds": 1}}
    vary = {"privacy.kind": ["local", "central"]}
    with ready.workers():
        rows = compare(values, vary, seeds=1, out=tmp_path / "out", jobs=2, ledger=ledger)
    said = sentences([row.cell for row in rows])
    for unit, one in zip(("record", "client"), said, strict=True):
        assert f"per {unit} sealed" in one
        assert "epsilon 0.000" not in one
        assert "has 1 runs" in one


@pytest.mark.parametrize("where", ["ledger", "runs"], ids=["beside the ledger", "beside the other comparison"])
@pytest.mark.parametrize("lost", ["deleted", "older"])
def test_a_shared_ledger_that_went_back_with_its_mark_is_missed_by_the_comparison_it_paid_for(tmp_path, where, lost):
    """Its runs lie in folders of folders: whoever looked beside the ledger alone would sell the same budget twice."""
    ledger = tmp_path / "ledgers" / "one.db"
    place = ledger.parent if where == "ledger" else tmp_path / "runs"
    mark = ledger.with_name("one.db.mark")
    values = NOISED | {"privacy": NOISED["privacy"] | {"delta_share": 0.2}}
    said = {"seeds": 1, "jobs": 1, "ledger": ledger}
    with ready.workers():
        compare(values, {}, out=place / "first", **said)
        kept = {file: file.read_bytes() for file in (ledger, mark)}
        if lost == "older":
            compare(values | {"train": NOISED["train"] | {"rounds": 1}}, {}, out=place / "second", **said)
        for file, content in kept.items():
            file.unlink() if lost == "deleted" else file.write_bytes(content)
        (row,) = compare(values, {}, out=(place if where == "runs" else tmp_path / "elsewhere") / "third", **said)
    assert not row.ended
    assert any(words in row.runs[0].failure for words in ("was charged", "an older copy", "knows no charge"))
