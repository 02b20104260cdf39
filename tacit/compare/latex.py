"""The tables of a comparison for a paper: a `tabular` with booktabs' rules, to be read by \\input; its notes are comments."""

import re
from collections.abc import Sequence

from tacit.compare import difference_table
from tacit.compare.results import Row
from tacit.compare.table import Column, columns, notes

LEFT_OUT = ("up", "down", "seconds")  # of the machine, not of the method
HEAD = r"% needs \usepackage{booktabs}"
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
    "ε": r"$\varepsilon$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "²": "$^2$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def latex(rows: Sequence[Row]) -> str:
    """The table of the cells."""
    varied = len(rows[0].cell.varied) or 1
    kept = [column for column in columns(rows) if column[0] not in LEFT_OUT]
    return tabular(kept, texts=varied, notes=notes(rows))


def differences(rows: Sequence[Row]) -> str:
    """The table of the paired differences; empty where no two seeds can be paired."""
    found = difference_table.columns(rows)
    return tabular(found, texts=1, notes=difference_table.notes(rows)) if found else ""


def tabular(found: Sequence[Column], *, texts: int, notes: Sequence[str]) -> str:
    """Columns as a tabular: the first `texts` begin at the left, the others end at the right.

    >>> print(tabular([("rule", ["pfa_plus"]), ("accuracy", ["0.9 ± 0.1"])], texts=1, notes=["One seed."]))
    % needs \\usepackage{booktabs}
    % One seed.
    \\begin{tabular}{lr}
    \\toprule
    rule & accuracy \\\\
    \\midrule
    pfa\\_plus & 0.9 $\\pm$ 0.1 \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    lines = [[heading for heading, _ in found], *zip(*(words for _, words in found), strict=True)]
    heading, *rest = (" & ".join(map(escaped, line)) + r" \\" for line in lines)
    places = "l" * texts + "r" * (len(found) - texts)
    begin, end = rf"\begin{{tabular}}{{{places}}}", r"\end{tabular}"
    said = ["% " + " ".join(note.split()) for note in notes]
    return "\n".join([HEAD, *said, begin, r"\toprule", heading, r"\midrule", *rest, r"\bottomrule", end, ""])


def escaped(words: str) -> str:
    """A text as LaTeX prints it: nothing in it is a command.

    >>> print(escaped("50 % of {a_b} & \\\\input"))
    50 \\% of \\{a\\_b\\} \\& \\textbackslash{}input
    """
    plain = re.sub(r"(?<!\S)-(?=\d)", "−", " ".join(words.split()))  # of a number it is a minus, not a hyphen
    return "".join(ESCAPED.get(sign, sign) for sign in plain)
