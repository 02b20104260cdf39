"""What a comparison leaves for a paper: one table of all rounds, LaTeX and PDF."""

import csv
import shutil
import subprocess

import pytest

from tacit import table as latex
from tacit.lab.compare import figures, table

GRID = {"aggregate.rule": ["mean", "pfa"], "privacy.epsilon": [3, 8]}
DOCUMENT = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table.tex}\end{document}"


def lines(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_all_rounds_of_all_runs_are_in_one_table_with_what_was_varied(made, tmp_path):
    rows = made(GRID, seeds=2, rounds=5, unit=lambda number: "record" if number % 2 else "client")
    for row in rows:
        for run in row.runs:
            for number, record in enumerate(run.rounds):
                record |= {"round": number, "score": record["accuracy"], "dropped": ["a"], "epsilon_loosest": 1.5}
    table.write(tmp_path, rows)
    found = lines(tmp_path / "rounds.csv")
    assert len(found) == 4 * 2 * 5
    assert list(found[0])[:4] == ["cell", "aggregate.rule", "privacy.epsilon", "seed"]
    assert not {"score", "dropped"} & set(found[0])
    chosen = [one for one in found if (one["aggregate.rule"], one["privacy.epsilon"], one["seed"]) == ("pfa", "8", "1")]
    assert [int(one["round"]) for one in chosen] == list(range(5))
    assert [float(one["accuracy"]) for one in chosen] == [record["accuracy"] for record in rows[3].runs[1].rounds]
    assert (found[0]["epsilon_per_client_loosest"], found[0]["epsilon_per_record_loosest"]) == ("1.5", "")


def test_a_comparison_without_a_finished_run_has_a_table_of_rounds_with_a_heading_alone(made, tmp_path):
    rows = made({}, seeds=1)
    object.__setattr__(rows[0].runs[0], "summary", None)
    table.write(tmp_path, rows)
    assert (tmp_path / "rounds.csv").read_text() == "cell,seed,round\n"
    assert lines(tmp_path / "differences.csv") == []


def test_whatever_stands_in_a_table_is_no_command_of_latex():
    signs = r"\input{x} 50 % $a_b^c$ # & ~ < > | {}"
    assert latex.escaped(signs) == (
        r"\textbackslash{}input\{x\} 50 \% \$a\_b\textasciicircum{}c\$ \# \& \textasciitilde{} $<$ $>$ \textbar{} \{\}"
    )
    assert latex.escaped("-0.5 ± 0.1, 1e-5") == r"$-$0.5 $\pm$ 0.1, 1e-5"
    assert latex.escaped("two\nlines ± − – …") == r"two lines $\pm$ $-$ -- \ldots{}"


def test_the_latex_table_has_a_row_per_cell_and_its_notes_cannot_break_out_of_their_comments(made, tmp_path):
    rows = made(GRID)
    table.write(tmp_path, rows)
    text = (tmp_path / "table.tex").read_text()
    begin, end = text.index(r"\midrule"), text.index(r"\bottomrule")
    assert text[begin:end].count(r"\\") == 4
    assert r"\begin{tabular}{llrr}" in text
    assert all(line.startswith("%") for line in text[: text.index(r"\begin")].splitlines())
    broken = latex.Table([latex.Column("a", ["b"])], ["one\n\\input{two}"]).latex()
    assert broken.splitlines()[1] == r"% one \input{two}"
    assert r"pfa, epsilon 3 $-$ mean, epsilon 3" in (tmp_path / "differences.tex").read_text()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_reads_the_tables(made, tmp_path):
    table.write(tmp_path, made(GRID))
    for name in ("table.tex", "differences.tex"):
        (tmp_path / "paper.tex").write_text(DOCUMENT.replace("table.tex", name))
        done = subprocess.run(
            ["pdflatex", "-halt-on-error", "paper.tex"], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout[-800:]


def test_a_figure_is_a_pdf_with_fonts_that_publishers_take_and_the_same_figure_is_the_same_file(made, tmp_path):
    rows = made(GRID)
    for name in ("one", "two"):
        figures.save(figures.by_cell(rows), tmp_path / name)
    for ending in (".svg", ".pdf"):
        one, two = ((tmp_path / name).with_suffix(ending).read_bytes() for name in ("one", "two"))
        assert one == two
    assert one.startswith(b"%PDF")
    assert b"/Subtype /Type3" not in one
