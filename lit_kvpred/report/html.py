"""The report as one HTML page: no script, no font, no image to load."""

from __future__ import annotations

from html import escape

from lit_kvpred.report.document import (
    Block,
    Cell,
    Definitions,
    Document,
    Facts,
    Figure,
    Gallery,
    Listing,
    Paragraph,
    Raw,
    Section,
    Table,
    Tile,
)
from lit_kvpred.report.stylesheet import stylesheet
from lit_kvpred.report.visible import visible


def to_html(document: Document) -> str:
    """The content of `report.html`."""
    links = "".join(
        f'<li><a href="#section-{place}">{_text(section.title)}</a></li>'
        for place, section in enumerate(document.sections)
    )
    tiles = "".join(map(_tile, document.tiles))
    sections = "\n".join(
        _section(place, section) for place, section in enumerate(document.sections)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(document.title)}</title>
<style>
{stylesheet()}
</style>
</head>
<body>
<header>
<h1>{_text(document.title)}</h1>
<p class="headline">{_text(document.headline)}</p>
{f'<div class="tiles">{tiles}</div>' if tiles else ""}
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def _section(place: int, section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    heading = f"<h2>{_text(section.title)}</h2>"
    return f'<section id="section-{place}">\n{heading}\n{blocks}\n</section>'


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile"><span class="label">{_text(tile.label)}</span>'
        f'<span class="value">{_text(tile.value)}</span>'
        f'<span class="detail">{_text(tile.detail)}</span></div>'
    )


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{_text(block.text)}</p>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Gallery):
        return _gallery(block)
    if isinstance(block, Listing):
        text = visible(block.text.text.rstrip("\n"), escape, _listing_mark)
        return _folded(block.title, f'<pre tabindex="0">{text}</pre>')
    if isinstance(block, Facts):
        return _facts(block)
    assert isinstance(block, Definitions)
    entries = "".join(
        f"<dt>{_text(term)}</dt><dd>{_text(meaning)}</dd>" for term, meaning in block.entries
    )
    return f"<dl>{entries}</dl>"


def _facts(facts: Facts) -> str:
    cards = []
    for title, settings in facts.groups:
        rows = "".join(
            f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
            for name, value in settings
        )
        cards.append(
            f'<div class="card"><h3>{_text(title)}</h3><table><tbody>{rows}</tbody></table></div>'
        )
    return f'<div class="facts">{"".join(cards)}</div>'


def _gallery(gallery: Gallery) -> str:
    figures = "".join(map(_figure, gallery.figures))
    tables = "".join(_folded(table.title, _rows(table)) for table in gallery.numbers)
    note = f"<p>{_text(gallery.note)}</p>" if gallery.note else ""
    return note + (f'<div class="gallery">{figures}</div>' if figures else "") + tables


def _figure(figure: Figure) -> str:
    return f"<figure><figcaption>{_text(figure.title)}</figcaption>{figure.svg}</figure>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{_text(title)}</summary>{content}</details>"


def _table(table: Table) -> str:
    return f"<h3>{_text(table.title)}</h3>{_rows(table)}"


def _rows(table: Table) -> str:
    head = ""
    if table.header:
        cells = "".join(
            f'<th scope="col"{_alignment(column, table)}>{_text(name)}</th>'
            for column, name in enumerate(table.header)
        )
        head = f"<thead><tr>{cells}</tr></thead>"
    body = "".join(
        "<tr>" + "".join(_cell(column, cell, table) for column, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    # Focusable, so that a keyboard can scroll a table wider than the screen.
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>{body}</tbody></table></div>'


def _cell(column: int, cell: Cell, table: Table) -> str:
    if isinstance(cell, Raw):
        return f'<td class="raw"><code>{_raw(cell)}</code></td>'
    if column == 0 and table.text_columns:
        return f'<th scope="row">{_text(cell)}</th>'
    return f"<td{_alignment(column, table)}>{_text(cell)}</td>"


def _alignment(column: int, table: Table) -> str:
    return "" if column < table.text_columns else ' class="number"'


def _raw(raw: Raw) -> str:
    if not raw.text:
        return "<i>(empty)</i>"
    return visible(raw.text, escape, _raw_mark).removesuffix("\n")


def _raw_mark(sign: str) -> str:
    return f"<i>{escape(sign)}</i>" + ("\n" if sign == "↵" else "")


def _listing_mark(sign: str) -> str:
    # Line ends and indentation are as they should be in a listing.
    return {"↵": "\n", "→": "\t"}.get(sign, sign.replace("·", " "))


def _text(text: str) -> str:
    return visible(text.strip(), escape, escape)
