"""The house keeps its order: no class name in two places, no more long functions, a README of one screen."""

import pytest

from tests.repo import house


def test_no_class_name_stands_in_two_places_without_a_reason():
    assert {name: where for name, where in house.classes_in_two_places().items() if name not in house.SAME_NAME} == {}


def test_every_reason_is_still_needed():
    assert set(house.SAME_NAME) <= set(house.classes_in_two_places())


def test_long_functions_grow_no_more():
    assert len(house.long_functions()) <= 14


def test_every_public_function_says_its_types():
    assert house.unannotated() == []


@pytest.mark.parametrize("line", ["rooms", "arrows", "circles                    0", "README lines"])
def test_report_names_each_measure(line):
    assert line in house.report()
