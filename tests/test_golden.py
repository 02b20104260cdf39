"""What should change no bit changes none: small runs against golden.json, which `python tests/golden.py` writes."""

import json

import golden
import pytest

KNOWN = json.loads(golden.FILE.read_text("utf-8"))
EXACT = KNOWN["probe"] == golden.probe()


def test_every_run_is_written_down_and_no_other():
    assert [*KNOWN["runs"]] == [*golden.RUNS]


@pytest.mark.skipif(KNOWN["versions"] != golden.VERSIONS, reason=f"golden.json was written with {KNOWN['versions']}")
@pytest.mark.parametrize("name", golden.RUNS)
def test_a_run_has_the_bits_that_are_written_down(name, tmp_path):
    found, known = golden.measured(name, tmp_path), KNOWN["runs"][name]
    assert [count for _, count in found["charged"]] == [count for _, count in known["charged"]]
    for (event, _), (written, _) in zip(found["charged"], known["charged"], strict=True):
        assert dict(golden.numbers(event)) == pytest.approx(dict(golden.numbers(written)), rel=golden.TOLERANCE)
    if not EXACT:
        pytest.skip("this processor rounds sums differently: what is charged agrees, bits cannot be compared")
    assert found == known, "where bits change on purpose: python tests/golden.py"


def test_a_run_that_was_stopped_and_resumed_ends_as_one_that_was_not():
    for name, whole in (("local, resumed", "local, random effects"), ("distributed, resumed", "distributed")):
        assert KNOWN["runs"][name]["model"] == KNOWN["runs"][whole]["model"]
        assert KNOWN["runs"][name]["ledger"] == KNOWN["runs"][whole]["ledger"]


def test_sums_that_nobody_reads_and_runs_at_sites_have_their_own_twins_bits():
    runs = KNOWN["runs"]
    assert runs["encrypted"]["model"] == runs["distributed"]["model"]
    assert runs["encrypted"]["ledger"] == runs["distributed"]["ledger"]
    assert len({run["model"] for run in runs.values()}) >= len(runs) - 5
