"""Rounds are counted from 1 wherever a person reads them, from 0 in files and messages."""

import re
from pathlib import Path

import pytest

from tacit.privacy.ledger.reader import release

ROOT = Path(__file__).resolve().parents[2]
# in a sentence: "round {round}", "Round {context.round}", "round {record['round']}", without a + 1
FROM_ZERO = re.compile(
    r"""[Rr]ounds? \{(?:\w+\.)*(?:round|_round|r|turn|newest|own|header\.round|\w+\[['"]round['"]\])\}"""
)
NO_SENTENCE = {
    "tacit/engine/loop.py": 'return f"round {round}"',
    "tacit/lab/audit/estimate.py": "enumerate(squares, 1)",
}


def sources():
    return [*(ROOT / "tacit").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]


def test_no_sentence_of_the_code_counts_rounds_from_0():
    found = {str(path.relative_to(ROOT)) for path in sources() if FROM_ZERO.search(path.read_text("utf-8"))}
    assert found == set(NO_SENTENCE)  # a name in the ledger, and one that enumerates from 1
    for path, words in NO_SENTENCE.items():
        assert words in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize(
    "text", ['f"Round {round} was"', "f'round {context.round} of'", "f\"round {record['round']}: \""]
)
def test_one_that_does_is_found(text):
    assert FROM_ZERO.search(text)
    assert not FROM_ZERO.search(re.sub(r"\}", " + 1}", text))


def test_no_page_notebook_or_document_speaks_of_a_round_0():
    spoken = re.compile(r"[^|`]*\b[Rr]ound 0\b[^|`]*")
    read = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs").rglob("*.ipynb"),
        *(ROOT / "tacit").rglob("*.js"),
        ROOT / "README.md",
    ]
    said = {path.name: found for path in read if (found := spoken.findall(path.read_text("utf-8")))}
    assert said == {}


def test_what_a_charge_was_for_counts_from_1():
    assert (release({"round": 0, "attempt": ""}), release({"round": 41, "attempt": ""})) == ("round 1", "round 42")
