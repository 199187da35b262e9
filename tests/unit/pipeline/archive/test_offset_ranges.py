"""Set operations on offset ranges."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.archive.offset_ranges import (
    OffsetRange,
    intersect_ranges,
    merge_ranges,
    ranges_of,
    subtract_ranges,
)


def ranges(*pairs: tuple[int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*pair) for pair in pairs)


def test_merge() -> None:
    assert merge_ranges(ranges((5, 7), (0, 2), (2, 3), (6, 9), (4, 4))) == ranges((0, 3), (5, 9))


def test_subtract() -> None:
    assert subtract_ranges(ranges((0, 10)), ranges((2, 3), (8, 20))) == ranges((0, 2), (3, 8))
    assert subtract_ranges(ranges((0, 3), (5, 6)), ranges((0, 6))) == ()


def test_intersect() -> None:
    assert intersect_ranges(ranges((0, 10), (20, 30)), ranges((5, 25))) == ranges((5, 10), (20, 25))


def test_ranges_of_single_offsets() -> None:
    assert ranges_of([4, 1, 2, 9]) == ranges((1, 3), (4, 5), (9, 10))


OFFSETS = st.frozensets(st.integers(0, 20))


@given(OFFSETS, OFFSETS)
def test_the_operations_are_those_of_sets(first: frozenset[int], second: frozenset[int]) -> None:
    assert merge_ranges([*ranges_of(first), *ranges_of(second)]) == ranges_of(first | second)
    assert subtract_ranges(ranges_of(first), ranges_of(second)) == ranges_of(first - second)
    assert intersect_ranges(ranges_of(first), ranges_of(second)) == ranges_of(first & second)
