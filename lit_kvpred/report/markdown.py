"""The report as Markdown: tables where the page has plots."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lit_kvpred.report.document import (
    Block,
    Cell,
    Definitions,
    Document,
    Facts,
    Gallery,
    Listing,
    Paragraph,
    Raw,
    Table,
)
from lit_kvpred.report.visible import visible

_PAD = 32  # columns of the source are aligned up to this width
_MEANINGFUL = re.compile(r"[\\`*<\[|]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def to_markdown(document: Document) -> str:
    """The content of `report.md`, in GitHub's flavour."""
    parts = [f"# {_text(document.title)}", _text(document.headline)]
    if document.tiles:
        parts.append(
            "\n".join(
                f"- {_text(tile.label)}: **{_text(tile.value)}** ({_text(tile.detail)})"
                for tile in document.tiles
            )
        )
    for section in document.sections:
        parts.append(f"## {_text(section.title)}")
        parts += [text for block in section.blocks if (text := _block(block))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return _text(block.text)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Gallery):
        return "\n\n".join(_table(table) for table in block.numbers)
    if isinstance(block, Listing):
        return _listing(block)
    if isinstance(block, Facts):
        return _facts(block)
    assert isinstance(block, Definitions)
    return "\n".join(f"- **{_text(term)}**: {_text(meaning)}" for term, meaning in block.entries)


def _facts(facts: Facts) -> str:
    rows = [
        (title if place == 0 else "", name, value)
        for title, settings in facts.groups
        for place, (name, value) in enumerate(settings)
    ]
    return _rows(Table("", ("Part", "Setting", "Value"), rows, text_columns=3))


def _table(table: Table) -> str:
    return f"**{_text(table.title)}**\n\n{_rows(table)}"


def _rows(table: Table) -> str:
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    columns = len(rows[0]) if rows else len(table.header)
    header = [_text(name) for name in table.header] or [""] * columns
    widths = [
        min(_PAD, max(3, *(len(row[column]) for row in [header, *rows])))
        for column in range(columns)
    ]
    rule = [
        "-" * width if column < table.text_columns else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    lines = [_line(cells, widths, table.text_columns) for cells in (header, rule, *rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], text_columns: int) -> str:
    padded = [
        cell.ljust(width) if column < text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _cell(cell: Cell) -> str:
    return _code(cell).replace("|", "\\|") if isinstance(cell, Raw) else _text(cell)


def _code(raw: Raw) -> str:
    if not raw.text:
        return "(empty)"
    text = visible(raw.text, str, str)
    fence = "`" * (_longest_ticks(text) + 1)
    # A tick at an end would merge with the fence.
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _listing(listing: Listing) -> str:
    # As it is: a configuration is there to be copied.
    text = listing.text.text.rstrip("\n")
    fence = "`" * max(3, _longest_ticks(text) + 1)
    return f"**{_text(listing.title)}**\n\n{fence}\n{text}\n{fence}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _text(text: str) -> str:
    one_line = visible(text.replace("\n", " ").strip(), str, str)
    return _MEANINGFUL.sub(r"\\\g<0>", one_line)
