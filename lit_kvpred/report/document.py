"""What a report consists of, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Raw:
    """Text of a prompt or a model: monospace, every character of it visible."""

    text: str


Cell = str | Raw


@dataclass(frozen=True)
class Paragraph:
    """A sentence or a few."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows under a header.

    Attributes:
        title: What the table holds, with the units of its columns where the cells have none.
        header: One name a column; empty where the first cell of each row names it.
        rows: The cells.
        text_columns: How many columns at the left hold text; the others are numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text_columns: int = 1


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        title: What is plotted against what.
        svg: The drawing, an `<svg>` element.
    """

    title: str
    svg: str


@dataclass(frozen=True)
class Gallery:
    """Figures beside each other and the numbers behind them.

    Attributes:
        figures: The plots.
        numbers: Tables of what the plots show.
        note: How to read the plots; left out with them.
    """

    figures: Sequence[Figure]
    numbers: Sequence[Table] = ()
    note: str = ""


@dataclass(frozen=True)
class Listing:
    """A long text, folded away behind its title where the medium can fold."""

    title: str
    text: Raw


@dataclass(frozen=True)
class Definitions:
    """Terms and what they mean."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Facts:
    """Settings in groups.

    Attributes:
        groups: Name of each group and its settings, each a name and a value.
    """

    groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]


Block = Paragraph | Table | Gallery | Listing | Definitions | Facts


@dataclass(frozen=True)
class Section:
    """A headed part of the report."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Tile:
    """A figure of the headline: a label, a value and a word on how it was measured."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    headline: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
