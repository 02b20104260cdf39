"""One table, for people and for programs: a column knows what its values are, and every writer asks it.

People read text (terminal, Markdown, LaTeX), programs plain values (CSV, JSON, the page), where one value may be several: an
interval has its half width beside it, an epsilon is a range at its delta. What is missing is a dash, or null."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from rich import box
from rich.table import Table as Drawn
from rich.text import Text

from tacit.privacy.guarantee import shown
from tacit.store import csv_of

MISSING = "–"
LATEX_NEEDS = r"% needs \usepackage{booktabs}"
LATEX = {
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


@dataclass(frozen=True)
class Estimate:
    """A mean; `interval` is the half width of its 95 % confidence interval, None where there is none.

    >>> Estimate(0.75, 0.5).span, Estimate(0.75, 0.5, (0.0, 1.0)).span
    ((0.5, 0.5), (0.5, 0.25))
    """

    mean: float
    interval: float | None
    bounds: tuple[float, float] = (-math.inf, math.inf)  # between which the number lies

    @classmethod
    def between(cls, value: float, low: float | None, high: float | None) -> "Estimate":
        """A number with the ends of its own interval, where it has one."""
        if low is None or high is None:
            return cls(value, None)
        return cls(value, max(high - value, value - low), (low, high))

    @property
    def ends(self) -> tuple[float, float] | tuple[None, None]:
        return (None, None) if self.interval is None else (self.mean - self.span[0], self.mean + self.span[1])

    @property
    def span(self) -> tuple[float, float]:
        """How far the interval reaches below and above: not where the number cannot be."""
        wide, (low, high) = self.interval or 0.0, self.bounds
        return min(wide, self.mean - low), min(wide, high - self.mean)


class Epsilon(NamedTuple):
    """The smallest and the largest epsilon of a group, at its delta."""

    low: float
    high: float
    delta: float


def with_interval(found: Estimate | None, sign: str = "") -> str:
    """A mean with its interval, as in `0.8731 ± 0.0120`."""
    if found is None:
        return MISSING
    return f"{found.mean:{sign}.4f}" + ("" if found.interval is None else f" ± {max(found.span):.4f}")


def _epsilon(value: Epsilon) -> str:
    return " to ".join(dict.fromkeys((shown(value.low), shown(value.high))))


@dataclass(frozen=True)
class Kind:
    """How the values of a column are said: a text for people, and for programs a value for each ending of the column's key."""

    text: Callable[[Any], str]
    endings: tuple[str, ...] = ("",)
    values: Callable[[Any], tuple[Any, ...]] = lambda value: (value,)
    number: bool = True


TEXT = Kind(str, number=False)
COUNT = Kind("{:,}".format)
SHARE = Kind("{:.4f}".format)
INTERVAL = Kind(with_interval, ("", "_interval"), lambda found: (found.mean, found.interval))
SIGNED = Kind(lambda found: with_interval(found, "+"), INTERVAL.endings, INTERVAL.values)
EPSILON = Kind(_epsilon, ("_min", "_max", "_delta"), tuple)


@dataclass(frozen=True)
class Column:
    """One column. Without a `heading` it is for programs alone, without a `key` for people alone.
    A text among numbers stands in for one that is not there: people read it, programs find null."""

    heading: str
    values: Sequence[Any]
    kind: Kind = TEXT
    key: str = ""

    def texts(self) -> list[str]:
        """What people read."""
        return [one if isinstance(one, str) else MISSING if one is None else self.kind.text(one) for one in self.values]

    def record(self, row: int) -> dict[str, Any]:
        """What programs read of a row."""
        value = self.values[row]
        missing = value is None or (isinstance(value, str) and self.kind is not TEXT)
        parts = [None] * len(self.kind.endings) if missing else self.kind.values(value)
        return {f"{self.key}{ending}": part for ending, part in zip(self.kind.endings, parts, strict=True)}


@dataclass(frozen=True)
class Table:
    """Columns of one length, with what must be read with them.

    >>> table = Table([Column("rule", ["mean"], key="rule"), Column("accuracy", [Estimate(0.9, 0.1)], INTERVAL, "accuracy")])
    >>> table.records(), table.texts()["accuracy"]
    ([{'rule': 'mean', 'accuracy': 0.9, 'accuracy_interval': 0.1}], ['0.9000 ± 0.1000'])
    """

    columns: Sequence[Column]
    notes: Sequence[str] = ()
    title: str = ""

    def texts(self) -> dict[str, list[str]]:
        """What people read, by heading."""
        return {column.heading: column.texts() for column in self.columns if column.heading}

    def records(self) -> list[dict[str, Any]]:
        """What programs read, row by row."""
        keyed = [column for column in self.columns if column.key]
        rows = range(len(keyed[0].values)) if keyed else ()
        return [{key: value for column in keyed for key, value in column.record(row).items()} for row in rows]

    def terminal(
        self,
        style: box.Box | None = box.SIMPLE_HEAD,
        *,
        caption: str = "",
        wrap: bool = False,
        red: Collection[int] = (),
    ) -> Drawn:
        """For a terminal: no word of a heading or of a cell is broken, but, with `wrap`, in the first column; some rows are red."""
        drawn = Drawn(
            title=self.title or None, title_justify="left", caption=caption or None, box=style, pad_edge=False
        )
        for place, column in enumerate(column for column in self.columns if column.heading):
            lines = [*column.heading.split(), *(line for text in column.texts() for line in text.split("\n"))]
            width: Any = {} if wrap and place == 0 else {"min_width": max(map(len, lines)), "no_wrap": wrap}
            drawn.add_column(Text(column.heading), justify="right" if column.kind.number else "left", **width)
        for number, row in enumerate(zip(*self.texts().values(), strict=True)):
            drawn.add_row(*map(Text, row), style="bold red" if number in red else None)
        return drawn

    def markdown(self) -> str:
        """The rows as Markdown; nothing in a cell breaks one."""
        texts = self.texts()
        lines = [list(texts), ["---"] * len(texts), *zip(*texts.values(), strict=True)]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
        )

    def html(self) -> str:
        """For a notebook. Every cell is text, never markup.

        >>> Table([Column("rule", ["<b>"])]).html()
        '<table><thead><tr><th>rule</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
        """
        texts = self.texts()

        def row(cells: Iterable[str], tag: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

        body = "".join(row(cells, "td") for cells in zip(*texts.values(), strict=True))
        return f"<table><thead>{row(texts, 'th')}</thead><tbody>{body}</tbody></table>"

    def latex(self, leave_out: Collection[str] = ()) -> str:
        r"""A tabular with booktabs' rules, for \input; notes are comments. Numbers end at the right.

        >>> print(Table([Column("rule", ["pfa_plus"]), Column("accuracy", [Estimate(0.9, 0.1)], INTERVAL)], ["One seed."]).latex())
        % needs \usepackage{booktabs}
        % One seed.
        \begin{tabular}{lr}
        \toprule
        rule & accuracy \\
        \midrule
        pfa\_plus & 0.9000 $\pm$ 0.1000 \\
        \bottomrule
        \end{tabular}
        <BLANKLINE>
        """
        kept = [column for column in self.columns if column.heading and column.heading not in leave_out]
        lines = [[column.heading for column in kept], *zip(*(column.texts() for column in kept), strict=True)]
        heading, *rest = (" & ".join(map(escaped, line)) + r" \\" for line in lines)
        places = "".join("r" if column.kind.number else "l" for column in kept)
        begin, end = rf"\begin{{tabular}}{{{places}}}", r"\end{tabular}"
        said = ["% " + " ".join(note.split()) for note in self.notes]
        parts = [LATEX_NEEDS, *said, begin, r"\toprule", heading, r"\midrule", *rest, r"\bottomrule", end, ""]
        return "\n".join(parts)

    def csv(self) -> bytes:
        """The records as a file; without a row, their keys alone."""
        keys = [f"{column.key}{ending}" for column in self.columns if column.key for ending in column.kind.endings]
        return csv_of(self.records(), keys)


def of_rows(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", notes: Sequence[str] = ()
) -> Table:
    """Rows of texts, and of what is text enough, under their headings: for people."""
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    return Table([Column(head, list(map(str, one))) for head, one in zip(heads, columns, strict=True)], notes, title)


def facts_table(facts: Iterable[tuple[str, str]]) -> Drawn:
    """Names and values side by side, for a terminal. Both are text, never markup."""
    drawn = Drawn.grid(padding=(0, 2))
    for name, value in facts:
        drawn.add_row(Text(name, style="dim"), Text(value))
    return drawn


def escaped(words: str) -> str:
    r"""A text as LaTeX prints it: nothing in it is a command.

    >>> print(escaped("50 % of {a_b} & \\input"))
    50 \% of \{a\_b\} \& \textbackslash{}input
    """
    plain = re.sub(r"(?<!\S)-(?=\d)", "−", " ".join(words.split()))  # of a number it is a minus, not a hyphen
    return "".join(LATEX.get(sign, sign) for sign in plain)


def for_json(value: Any, *, infinite: Callable[[float], Any] = lambda number: None) -> Any:
    """Plain values for JSON, which knows neither infinity nor NaN: they are null, or what `infinite` makes of them.

    >>> for_json({"epsilon": (1.5, math.inf)}), for_json([math.inf], infinite=str)
    ({'epsilon': [1.5, None]}, ['inf'])
    """
    if isinstance(value, Mapping):
        return {str(key): for_json(part, infinite=infinite) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(part, infinite=infinite) for part in value]
    return infinite(value) if isinstance(value, float) and not math.isfinite(value) else value
