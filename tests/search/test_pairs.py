"""Which two changes of a point are tried at once, and in which order."""

from __future__ import annotations

import math

from ktune.core.model import Configuration, Value
from ktune.core.space import Space
from ktune.search.pairs import paired_changes
from tests.search.landscapes import landscape_family
from tests.search.toy_search import toy_problem

SPACE = Space(landscape_family(), [toy_problem()])
CENTRE = SPACE.complete({"algorithm": "staged", "block": 64, "share": 4})


def changed(**values: Value) -> Configuration:
    return SPACE.complete({**CENTRE, **values})


def test_pairs_come_in_the_order_of_the_product_of_what_their_changes_cost() -> None:
    slowdowns = {changed(unroll=4): 1.02, changed(order="tile"): 0.99, changed(fast=True): 1.05, changed(depth=3): 1.0}
    assert paired_changes(CENTRE, slowdowns, SPACE, most=1.07) == [
        changed(order="tile", depth=3),
        changed(unroll=4, order="tile"),
        changed(unroll=4, depth=3),
        changed(order="tile", fast=True),
        changed(fast=True, depth=3),
    ], "1.02 times 1.05 is beyond the most"


def test_two_values_of_one_parameter_are_no_pair() -> None:
    assert paired_changes(CENTRE, {changed(unroll=2): 1.0, changed(unroll=4): 1.0}, SPACE, most=2.0) == []


def test_a_pair_that_breaks_a_rule_is_left_out_though_each_change_keeps_it() -> None:
    """A block has 16 shares or more."""
    slowdowns = {changed(block=128): 1.0, changed(share=1): 1.0, changed(share=2): 1.0, changed(block=32, share=2): 1.0}
    assert changed(block=32, share=2) in SPACE
    assert paired_changes(CENTRE, slowdowns, SPACE, most=2.0) == [
        changed(block=128, share=1),
        changed(block=128, share=2),
    ]
    wide = SPACE.complete({**CENTRE, "block": 128})
    fewer = {SPACE.complete({**wide, "block": 64}): 1.0, SPACE.complete({**wide, "share": 8}): 1.0}
    assert paired_changes(wide, fewer, SPACE, most=2.0) == []


def test_what_failed_or_has_other_parameters_is_no_change() -> None:
    plain = SPACE.complete({**{k: v for k, v in CENTRE.items() if k != "depth"}, "algorithm": "plain"})
    slowdowns = {changed(unroll=2): math.inf, plain: 1.0, changed(order="tile"): 1.0}
    assert paired_changes(CENTRE, slowdowns, SPACE, most=math.inf) == []
