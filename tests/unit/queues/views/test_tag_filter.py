"""The filter of a view: which records of a batch it selects, and the batches that it rewrites."""

from random import Random

import pytest

from kbroker.config.queue_configs import parse_tag_expression
from kbroker.queues.views import TagFilter
from protocol.errors import MalformedError
from protocol.records.batch import iter_batch_records, parse_header
from protocol.records.record import Record
from tests.unit.support.views import Tagged, tagged


def records(data: bytes) -> list[Record]:
    return list(iter_batch_records(data, parse_header(data)))


@pytest.mark.parametrize("codec", range(5))
def test_rewritten_batches_keep_offsets(codec: int) -> None:
    data = tagged((b"1", b"a", None), (b"2", b"b", None), (b"3", b"a", None), codec=codec)
    header = parse_header(data)
    kept = TagFilter(parse_tag_expression("a")).filter_batch(memoryview(data), header, 0, 1 << 20)
    assert kept is not None
    rewritten = parse_header(kept)
    assert (rewritten.base_offset, rewritten.last_offset_delta, rewritten.count) == (0, 2, 2)
    assert [(record.offset_delta, record.value) for record in records(bytes(kept))] == [(0, b"1"), (2, b"3")]


def test_a_batch_that_is_selected_completely_is_not_copied() -> None:
    data = memoryview(tagged((b"1", b"a", None), (b"2", b"a", None)))
    assert TagFilter(parse_tag_expression("a")).filter_batch(data, parse_header(data), 0, 1 << 20) is data


@pytest.mark.parametrize("terms", [2, 255])
def test_a_filter_of_many_terms_selects_the_same_records(terms: int) -> None:
    """With many terms the headers of all records are decoded; otherwise the bytes of the terms are searched."""
    random = Random(terms)
    expression = " || ".join([f"t{number}" for number in range(terms)]) + " || KEYS in (k)"
    read_filter = TagFilter(parse_tag_expression(expression))
    for _ in range(100):
        rows: list[Tagged] = []
        for _ in range(random.randrange(1, 30)):
            tag = random.choice([b"t1", b"t0", b"u", b"t1x", None])
            value = random.choice([b"x", b"\x08TAGS\x04t1", b"k", b"y" * 300])
            rows.append((value, tag, random.choice([None, b"k", b"kk", b"a k"])))
        data = tagged(*rows)
        kept = read_filter.filter_batch(memoryview(data), parse_header(data), 0, 1 << 20)
        expected = [
            index for index, (_, tag, keys) in enumerate(rows) if tag in (b"t0", b"t1") or keys in (b"k", b"a k")
        ]
        assert ([record.offset_delta for record in records(bytes(kept))] if kept else []) == expected


def test_damaged_records_are_reported() -> None:
    data = tagged((b"1", b"a", None), (b"2", b"a", None))
    data[61] = 0x7F
    with pytest.raises(MalformedError):
        TagFilter(parse_tag_expression("a")).filter_batch(memoryview(data), parse_header(data), 0, 1 << 20)
