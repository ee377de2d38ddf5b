"""Drawings that fit the page around them."""

import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from lit_kvpred.report.plots import (
    COLOURS,
    PREDICTED,
    draw,
    share_axis,
    shorten,
    tick_seconds,
    value_axis,
)


def axes():
    return Figure().add_subplot()


def test_a_drawing_is_well_formed_and_takes_its_colours_from_the_page():
    def paint(ax):
        ax.plot([0, 1], [2, 3], "o-", color=PREDICTED.mark, label="a <b> & $x_1$ 日本")

    svg = draw("first", 'KL "by" <tokens>', paint)
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == 'KL "by" <tokens>'
    assert "width" not in root.attrib
    assert f"var({PREDICTED.name})" in svg
    assert not re.search(r"#0102", svg)
    assert "a <b> & $x_1$ 日本" in [element.text for element in root.iter()]


def test_identifiers_of_two_drawings_differ_and_references_resolve():
    drawings = [draw(name, "", lambda ax: ax.plot([0, 1], [0, 1], "o-")) for name in "ab"]
    identifiers = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in drawings]
    assert not identifiers[0] & identifiers[1]
    for svg, known in zip(drawings, identifiers, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= known


def test_drawing_is_repeatable_and_leaves_the_settings_of_matplotlib_alone():
    before = {key: value for key, value in mpl.rcParams.items() if key != "backend"}

    def paint(ax):
        ax.plot([0, 1], [0, 1])

    assert draw("a", "", paint) == draw("a", "", paint)
    assert {key: mpl.rcParams[key] for key in before} == before


def test_every_colour_can_be_told_from_the_others():
    for attribute in ("name", "mark", "light", "dark"):
        assert len({getattr(colour, attribute) for colour in COLOURS}) == len(COLOURS)


@pytest.mark.parametrize("values", [[0.0, 0.5], [0.97, 1.0], [0.4, 0.4], [-0.2, 1.3]])
def test_share_axis_holds_its_values(values):
    ax = axes()
    share_axis(ax, [*values, float("nan")], "Agreement")
    low, high = ax.get_ylim()
    assert low < min(values)
    assert high > max(values)


def test_share_axis_shows_hardly_more_than_there_can_be():
    ax = axes()
    share_axis(ax, [0.0, 1.0], "Agreement")
    low, high = ax.get_ylim()
    assert low > -0.05
    assert high < 1.05


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([4.0, 0.1], "log"),
        ([4.0, 1.0], "linear"),
        ([4.0, 0.0], "linear"),
        ([-1.0, 3.0], "linear"),
        ([2.0, 2.0], "linear"),
        ([], "linear"),
    ],
)
def test_value_axis_is_logarithmic_over_more_than_a_decade(values, scale):
    ax = axes()
    value_axis(ax, values, "KL")
    assert ax.get_yscale() == scale
    low, high = ax.get_ylim()
    assert low < min(values, default=1)
    assert high > max(values, default=0)


def test_value_axis_does_not_squeeze_a_curve_to_show_zero():
    ax = axes()
    value_axis(ax, [2.0, 2.2], "Loss")
    assert ax.get_ylim()[0] > 1.9


def test_small_helpers():
    assert shorten("short") == "short"
    assert len(shorten("x" * 100)) <= 44
    assert shorten("a\x1b\ud800b") == "a\\u001b\\ud800b"
    assert tick_seconds([0.2, float("nan")]) == (1e3, "ms")
    assert tick_seconds([0.2, 2.0]) == (1.0, "s")
