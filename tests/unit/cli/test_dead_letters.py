"""Which dead letters a filter selects, and the group that keeps the progress of a redrive."""

import pytest

from kbroker.cli.dlq.redrive import DeadLetter, LetterFilter, dead_letter, parse_header_filters, redrive_group

HEADERS = (
    ("trace", b"7"),
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"2"),
    ("__dlq.errors.offset", b"41"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.delivery.count", b"3"),
    ("__dlq.errors.message", b"no such shop"),
    ("kafka_dlt-exception-fqcn", b"shop.errors.Missing"),
)


def test_the_headers_of_a_dead_letter():
    assert dead_letter(HEADERS) == DeadLetter(
        "orders", "2", "41", "billing", "3", "shop.errors.Missing", "no such shop", None
    )
    assert dead_letter([("trace", None)]) == DeadLetter(*[None] * 8)


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (LetterFilter(), True),
        (LetterFilter(topic="orders", group="billing"), True),
        (LetterFilter(topic="orders", group="shipping"), False),
        (LetterFilter(topic="carts"), False),
        (LetterFilter(error="Missing"), True),
        (LetterFilter(error="shop.errors.Missing"), True),
        (LetterFilter(error="issing"), False),
        (LetterFilter(from_ms=1000, until_ms=1001), True),
        (LetterFilter(from_ms=1001), False),
        (LetterFilter(until_ms=1000), False),
        (LetterFilter(headers=parse_header_filters(["trace", "trace=7"])), True),
        (LetterFilter(headers=parse_header_filters(["trace=8"])), False),
        (LetterFilter(headers=parse_header_filters(["absent"])), False),
    ],
)
def test_filters(selection: LetterFilter, selected: bool):
    assert selection.selects(HEADERS, 1000) is selected


@pytest.mark.parametrize("text", ["h", "h=1", "h=2", "null"])
def test_one_of_several_headers_is_enough_and_a_null_value_is_a_value(text: str):
    headers = (("h", b"1"), ("h", b"2"), ("null", None))
    assert LetterFilter(headers=parse_header_filters([text])).selects(headers, 0)
    assert not LetterFilter(headers=parse_header_filters([text, "h=3"])).selects(headers, 0)
    assert not LetterFilter(headers=parse_header_filters([text, "null="])).selects(headers, 0)


def test_a_record_of_another_producer_has_no_group_or_error():
    assert LetterFilter().selects((), 0)
    assert not LetterFilter(error="Missing").selects((), 0)


def test_each_selection_and_target_has_a_progress_of_its_own():
    groups = {
        redrive_group("dlq.t", LetterFilter(), None),
        redrive_group("dlq.t", LetterFilter(), "t"),
        redrive_group("dlq.t", LetterFilter(group="g"), None),
        redrive_group("dlq.u", LetterFilter(), None),
    }
    assert len(groups) == 4
    assert "kbroker-redrive-dlq.t" in groups
    assert redrive_group("dlq.t", LetterFilter(group="g"), None) in groups


def test_times_before_now_are_the_same_progress_with_each_run():
    def group(from_ms: int | None, until_ms: int | None, *relative_times: str | None) -> str:
        start, end = relative_times
        return redrive_group("dlq.t", LetterFilter(from_ms=from_ms, until_ms=until_ms), None, (start, end))

    assert group(1000, None, "7d", None) == group(2000, None, "7d", None)
    assert group(None, 1000, None, "1h") == group(None, 2000, None, "1h")
    assert group(1000, 5000, "7d", None) != group(1000, 6000, "7d", None)
    assert group(1000, 5000, "7d", "1h") == group(2000, 6000, "7d", "1h")
    names = {
        group(1, None, "7d", None),
        group(1, None, "8d", None),
        group(None, 1, None, "7d"),
        group(None, None, None, None),
    }
    assert len(names) == 4
    # Groups of earlier versions go on.
    assert group(1000, None, None, None) == redrive_group("dlq.t", LetterFilter(from_ms=1000), None)
