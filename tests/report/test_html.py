"""The page stands by itself: valid, escaped, offline, small."""

import re
from html.parser import HTMLParser

import pytest

from lit_kvpred.report.document import (
    Definitions,
    Document,
    Facts,
    Gallery,
    Listing,
    Paragraph,
    Raw,
    Section,
    Table,
    Tile,
)
from lit_kvpred.report.html import to_html

VOID = {"meta", "path", "use", "rect"}


class Checker(HTMLParser):
    """Collects tags, identifiers and addresses, and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.identifiers: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.identifiers.append(value)
            if name in ("href", "src", "xlink:href"):
                self.addresses.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def checked(written):
    checker = Checker()
    checker.feed(written.html)
    checker.close()
    return checker


def test_tags_match_and_identifiers_are_unique(checked):
    assert checked.open == []
    assert len(checked.identifiers) == len(set(checked.identifiers))


def test_nothing_is_loaded_and_nothing_runs(checked, written):
    assert checked.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert all(address.startswith("#") for address in checked.addresses)
    targets = set(re.findall(r"url\(#([^)]+)\)", written.html))
    targets |= {address[1:] for address in checked.addresses}
    assert targets <= set(checked.identifiers)
    assert "@import" not in written.html
    assert "@font-face" not in written.html


def test_page_is_small_and_serves_both_colour_schemes(written):
    assert len(written.html.encode()) < 1_000_000
    assert "prefers-color-scheme: dark" in written.html
    assert '<meta name="viewport"' in written.html


def test_every_part_is_on_the_page(written):
    for text in (
        "Validation report: prefix15",
        "HuggingFaceTB/SmolLM2-135M",
        "sha256:5d1c07a7",
        "Time to first token by prompt length; batch 1, 2 threads, float32",
        "Speed-up by prompt length",
        "Published ratio",
        "gsm8k: last number against time to first token",
        "Agreement with the base by tokens seen",
        "KL to the base by tokens seen",
        "Keys: mean absolute error by base layer",
        "Values: mean absolute error by base layer",
        "period 16, threshold 0.1, temperature 0.6, policy hold",
        "Training and validation loss by tokens seen",
        "Parts of the training loss by tokens seen",
        "Evaluation by the test command",
        "Comparison with other runs",
        "kind: prefix",
    ):
        assert text in written.html


def test_text_of_models_is_escaped_and_visible(written):
    assert "&lt;script&gt;alert(&#x27;not run&#x27;)&lt;/script&gt;" in written.html
    assert "\x1b" not in written.html
    assert "\u202e" not in written.html
    assert "<code><i>→</i><i>→</i>.replace" in written.html
    assert "<i>(empty)</i>" in written.html


def test_every_block_is_escaped():
    hostile = '<img src=x onerror="alert(1)">&'
    document = Document(
        hostile,
        hostile,
        [Tile(hostile, hostile, hostile)],
        [
            Section(
                hostile,
                [
                    Paragraph(hostile),
                    Table(hostile, [hostile, "n"], [[hostile, Raw(hostile)]]),
                    Gallery((), [Table(hostile, [], [[hostile]], 0)], hostile),
                    Listing(hostile, Raw(hostile)),
                    Definitions([(hostile, hostile)]),
                    Facts([(hostile, [(hostile, hostile)])]),
                ],
            )
        ],
    )
    page = to_html(document)
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=") == 23


def test_listing_keeps_its_lines_and_indentation():
    listing = Listing("config.yaml", Raw("a:\n  b: 1\n\tc\n"))
    page = to_html(Document("t", "h", [], [Section("s", [listing])]))
    assert "a:\n  b: 1\n\tc</pre>" in page


def test_columns_of_numbers_are_aligned_right():
    table = Table("t", ["Task", "n"], [["a", "1"]])
    page = to_html(Document("t", "h", [], [Section("s", [table])]))
    assert '<th scope="col">Task</th><th scope="col" class="number">n</th>' in page
    assert '<th scope="row">a</th><td class="number">1</td>' in page
