"""The text version holds what the page plots."""

import pytest

from lit_kvpred.report.document import (
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
)
from lit_kvpred.report.markdown import to_markdown


def markdown_of(block):
    return to_markdown(Document("t", "h", [], [Section("s", [block])])).split("## s\n\n", 1)[1]


def test_table_is_aligned_in_the_source():
    table = Table("Score", ["Task", "Base"], [["gsm8k", "25.0 %"], ["a|b", "–"]])  # noqa: RUF001
    assert markdown_of(table) == (
        "**Score**\n\n"
        "| Task  |   Base |\n"
        "| ----- | -----: |\n"
        "| gsm8k | 25.0 % |\n"
        "| a\\|b  |      – |\n"  # noqa: RUF001
    )


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("plain", "`plain`"),
        ("a|b", "`a\\|b`"),
        ("x = `y`", "`` x = `y` ``"),
        ("``", "``` `` ```"),
        ("one\ntwo", "`one↵two`"),
        ("", "(empty)"),
        ("<b>", "`<b>`"),
    ],
)
def test_text_of_models_is_code(text, cell):
    assert f"| {cell} " in markdown_of(Table("t", [], [["Base", Raw(text)]], text_columns=2))


def test_marks_of_markdown_in_other_text_are_literal():
    text = markdown_of(Paragraph("a*b* `c` <i> [d](e) next_line __init__ x\ny"))
    assert text == "a\\*b\\* \\`c\\` \\<i> \\[d](e) next_line \\_\\_init\\_\\_ x y\n"


def test_figures_give_way_to_their_numbers():
    gallery = Gallery([Figure("plot", "<svg></svg>")], [Table("t", ["a"], [["1"]], 0)], "note")
    text = markdown_of(gallery)
    assert "svg" not in text
    assert "note" not in text
    assert "|   1 |" in text


def test_listing_is_fenced_beyond_its_own_fences():
    assert (
        markdown_of(Listing("config", Raw("a: 1\n```\n")))
        == "**config**\n\n````\na: 1\n```\n````\n"
    )


def test_facts_and_definitions():
    facts = Facts([("Base", [("Layers", "30"), ("Family", "llama")])])
    assert "| Base | Layers  | 30    |\n|      | Family  | llama |" in markdown_of(facts)
    assert markdown_of(Definitions([("KL", "divergence")])) == "- **KL**: divergence\n"


def test_every_part_is_in_the_text(written):
    for text in (
        "# Validation report: prefix15",
        "- Speed-up to the first token: **1.77×**",  # noqa: RUF001
        "| Base      | Source ",
        "| 0-14, 14 (15 times)",
        "|         1,024 |   634 ms (615 to 666) |    358 ms (347 to 376) |",
        "| 275.5 GFLOPs |  142.7 GFLOPs |",
        "| gsm8k         |     307,200 |",
        "|     307,200 |  300 |    84.3 % |",
        "|         29 |        0.436 |          0.222 |          0.698 |            0.355 |",
        "| Corrected |     307,200 |                        12.0 |          20.0 % |",
        "| val/loss |",
        "## Evaluation by the test command",
        "**After 245,760 tokens, linear between evaluations",
        "kind: prefix",
    ):
        assert text in written.markdown
