"""Java's String.hashCode: the values that Java returns, and equality with its definition for random strings."""

import time
from collections.abc import Callable
from struct import unpack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbroker.coordinator.java_hash import BLOCK_UNITS, former_key_hash, java_hash, key_hash

ANY_CHARACTER = st.characters()
LONGEST = 32_767


def by_definition(text: str) -> int:
    """String.hashCode as its documentation defines it, as an unsigned integer."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


@pytest.mark.parametrize(
    ("text", "value", "absolute", "lower_bits"),
    [
        ("", 0, 0, 0),
        ("g", 103, 103, 103),
        ("console-consumer-12345", 158455506, 158455506, 158455506),
        ("my-app", -1061206400, 1061206400, 1086277248),
        ("polygenelubricants", -(2**31), 0, 0),
        ("grüße", 98768023, 98768023, 98768023),
        ("𝄞", 1772394, 1772394, 1772394),
    ],
)
def test_the_values_are_those_of_java(text: str, value: int, absolute: int, lower_bits: int) -> None:
    """The lowest integer has no absolute value; Kafka takes 0."""
    assert java_hash(text) == value % 2**32
    assert key_hash(text) == absolute
    assert former_key_hash(text) == lower_bits


@given(st.text(ANY_CHARACTER | st.integers(0xD800, 0xDFFF).map(chr)), st.integers(0, 3 * BLOCK_UNITS))
@example("\uffff", 2 * BLOCK_UNITS - 1)
@example("\0", BLOCK_UNITS)
@example("\udc00\ud800", BLOCK_UNITS // 2)
def test_the_hash_is_equal_to_its_definition(text: str, length: int) -> None:
    """The strings include unpaired surrogates, and their lengths include those around the limits of a block."""
    repeated = text * (length // max(1, len(text))) + text
    for candidate in (text, repeated, repeated[:length]):
        assert java_hash(candidate) == by_definition(candidate)


@pytest.mark.parametrize("character", ["\0", "\uffff", "x"])
@pytest.mark.parametrize("length", [BLOCK_UNITS - 1, BLOCK_UNITS, BLOCK_UNITS + 1, 2 * BLOCK_UNITS, LONGEST])
def test_strings_of_one_character(character: str, length: int) -> None:
    assert java_hash(character * length) == by_definition(character * length)


def test_the_longest_string_takes_a_small_part_of_the_time_of_a_loop() -> None:
    text = "x" * LONGEST

    def best_of(function: Callable[[str], int]) -> float:
        times = []
        for _ in range(5):
            start = time.thread_time()
            function(text)
            times.append(time.thread_time() - start)
        return min(times)

    assert best_of(java_hash) * 3 < best_of(by_definition)
