"""benchmarks/error_page.py, from figures that are made up here: no such file is kept as a result."""

from __future__ import annotations

import math
import re
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from error_and_time import subjects
from error_page import MEASURED, Point, error_page

from ktune.core.loading import load_family

DEPTH = 32768
MADE_UP = "made up for a test"
FACTS = {"problem": "<none>", "GPU": "none"}


def made_up(inputs: str = "normal") -> list[Point]:
    """Crowded as the real ones may be: schemes of nearly one time, intervals of nearly one error."""
    points = [Point("cuBLAS fp32", None, inputs, 5300, 5290, 5310, 0.15, 0.46, 0.36, "")]
    for scheme, time_us, scale in (
        ("tf32", 1050, 60),
        ("bf16x3", 1240, 1),
        ("fp16x3", 1252, 0.9),
        ("tf32x3", 2100, 0.8),
    ):
        for i, promote_k in enumerate((256, 512, 1024, 2048, 4096, 32768)):
            error = scale * (0.3, 0.31, 0.33, 0.5, 1.6, 13.0)[i]
            reason = "too far off" if error > 1 else ""
            points.append(
                Point(
                    scheme,
                    promote_k,
                    inputs,
                    time_us - i,
                    time_us - i - 1,
                    time_us + 1,
                    error / 2,
                    error,
                    error / 3,
                    reason,
                )
            )
    return points


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_every_point_is_drawn_where_it_belongs_and_wrong_ones_are_hollow_above_the_limit() -> None:
    points = made_up()
    page = error_page(points, FACTS, MADE_UP, DEPTH)
    (svg,) = svgs(page)
    limit = next(float(line.attrib["y1"]) for line in svg.iter("line") if "level" in line.attrib["class"])
    circles = list(svg.iter("circle"))
    assert len(circles) == len(points)
    for circle in circles:
        assert ("wrong" in circle.attrib["class"]) == (float(circle.attrib["cy"]) < limit)
    assert sum("wrong" in circle.attrib["class"] for circle in circles) == sum(p.worst > 1 for p in points) > 5
    assert page.count("<td>wrong: too far off</td>") == sum(p.worst > 1 for p in points)


def test_labels_name_each_scheme_once_and_do_not_overlap() -> None:
    (svg,) = svgs(error_page(made_up(), FACTS, MADE_UP, DEPTH))
    labels = [text for text in svg.iter("text") if "beside" in text.attrib.get("class", "")]
    texts = [label.text or "" for label in labels]
    assert sorted(t for t in texts if not t[0].isdigit()) == [
        "bf16x3 never", "cuBLAS fp32", "fp16x3 never", "tf32 never", "tf32x3 never",
    ]  # fmt: skip
    assert texts.count("1,024") == 4
    boxes = [
        (float(label.attrib["x"]), float(label.attrib["y"]), 5.5 * len(label.text or ""), 11.0) for label in labels
    ]
    for (x, y, width, height), (u, v, other, _) in combinations(boxes, 2):
        assert x + width <= u or u + other <= x or abs(y - v) >= height


def test_a_page_of_figures_that_were_not_measured_says_so() -> None:
    assert "Not a measurement: made up for a test." in error_page(made_up(), FACTS, MADE_UP, DEPTH)
    assert "Not a measurement" not in error_page(made_up(), FACTS, MEASURED, DEPTH)


def test_both_kinds_of_inputs_have_a_figure_and_texts_are_escaped() -> None:
    page = error_page([*made_up(), *made_up("uniform")], FACTS, MADE_UP, DEPTH)
    assert len(svgs(page)) == 2 and "x from N(0, 1)" in page and "x from U[0, 1)" in page
    assert "&lt;none&gt;" in page and "<none>" not in page
    assert "http" not in page and "<script" not in page


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_error_that_cannot_be_drawn_is_in_the_table(error: float) -> None:
    lost = Point("lost", 256, "normal", 1000, 999, 1001, error, error, error, "y[0, 0] is the first")
    page = error_page([*made_up(), lost], FACTS, MADE_UP, DEPTH)
    assert len(list(svgs(page)[0].iter("circle"))) == len(made_up())
    assert "<td>lost</td>" in page and f"<td>{error:.2g}</td>" in page
    assert "nothing is drawn" in error_page([lost], FACTS, MADE_UP, DEPTH)


def test_every_kind_of_operands_and_every_interval_is_measured() -> None:
    family = load_family("linear_swish_scale").family
    found = list(subjects())
    pairs = {(subject.name, promote) for subject, promote in found if promote is not None}
    kinds, intervals = (family.parameter(name).values for name in ("operands", "promote_k"))
    assert pairs == {(kind, interval) for kind in kinds for interval in intervals}
    assert {subject.name for subject, promote in found if promote is None} == {
        "cuBLAS fp32",
        "cuBLAS TF32",
        "simt fp32",
    }
