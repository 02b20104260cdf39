"""One table: every writer says the same of the same columns, and what is missing is said to be missing."""

import csv
import io
import math

from rich.console import Console

from tacit.table import COUNT, EPSILON, INTERVAL, SHARE, Column, Epsilon, Estimate, Table

TABLE = Table(
    [
        Column("rule", ["mean", "a|b"], key="rule"),
        Column("rows", [1200, None], COUNT, "rows"),
        Column("found", [0.25, 0.5], SHARE, "found"),
        Column("accuracy", [Estimate(0.9, 0.1), Estimate(0.5, None)], INTERVAL, "accuracy"),
        Column("epsilon", [Epsilon(0.5, 0.9999, 1e-5), "no promise"], EPSILON, "epsilon"),
        Column("", [1, 2], COUNT, "for_programs"),
        Column("for people", ["x", "y"]),
    ],
    ["A note."],
)


def test_people_and_programs_read_the_same_rows():
    assert list(TABLE.texts()) == ["rule", "rows", "found", "accuracy", "epsilon", "for people"]
    assert TABLE.texts()["rows"] == ["1,200", "–"]
    assert TABLE.texts()["accuracy"] == ["0.9000 ± 0.1000", "0.5000"]
    assert TABLE.texts()["epsilon"] == ["0.500 to 1.000", "no promise"]  # rounded up
    first, second = TABLE.records()
    assert first["epsilon_max"] == 0.9999
    assert first["epsilon_delta"] == 1e-5  # no epsilon without its delta
    assert (second["rows"], second["epsilon_max"], second["accuracy_interval"]) == (None, None, None)
    assert (first["for_programs"], "for people" in first) == (1, False)


def test_every_writer_has_every_row():
    file = io.StringIO()
    Console(file=file, width=200).print(TABLE.terminal())
    for words in (file.getvalue(), TABLE.markdown(), TABLE.latex()):
        assert words.count("0.500 to 1.000") == words.count("no promise") == 1
    assert "a\\|b" in TABLE.markdown()
    assert r"\begin{tabular}{lrrrrl}" in TABLE.latex()
    assert "rows" not in TABLE.latex(["rows"])
    assert len(list(csv.DictReader(TABLE.csv().decode().splitlines()))) == 2
    empty = Table([Column("epsilon", [], EPSILON, "epsilon")])
    assert empty.csv() == b"epsilon_min,epsilon_max,epsilon_delta\n"


def test_an_epsilon_without_bound_is_said():
    assert Column("epsilon", [Epsilon(1.0, math.inf, 0.1)], EPSILON).texts() == ["1.000 to inf"]
