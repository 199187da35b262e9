"""Which headers delay a record, and which are refused."""

import pytest

from kbroker.config.queue_configs import DEFAULT_LEVELS, delay_levels, levels_ms
from kbroker.config.values import ConfigError
from kbroker.queues.delay.delay_batches import parse_due_time
from kbroker.queues.record_headers import InvalidHeaderError

ARRIVAL = 1_700_000_000_000
LEVELS_MS = levels_ms(DEFAULT_LEVELS)


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        (b"DELAY", b"1", ARRIVAL + 1_000),
        (b"DELAY", b"3", ARRIVAL + 10_000),
        (b"DELAY", b"5", ARRIVAL + 60_000),
        (b"DELAY", b"14", ARRIVAL + 600_000),
        (b"DELAY", b"18", ARRIVAL + 7_200_000),
        (b"TIMER_DELAY_SEC", b"7", ARRIVAL + 7_000),
        (b"TIMER_DELAY_MS", b"250", ARRIVAL + 250),
        (b"TIMER_DELIVER_MS", b"1700000000500", ARRIVAL + 500),
        (b"TIMER_DELAY_MS", b"0", ARRIVAL),
    ],
)
def test_when_a_record_is_due(name, value, due_ms):
    assert parse_due_time([(b"other", b"x"), (name, value)], LEVELS_MS, ARRIVAL) == due_ms


def test_there_are_the_18_levels_of_rocketmq():
    assert [ms // 1000 for ms in LEVELS_MS] == [
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
    ]  # fmt: skip


def test_other_headers_do_not_delay():
    assert parse_due_time([], LEVELS_MS, ARRIVAL) is None
    assert parse_due_time([(b"delay", b"5"), (b"TAGS", b"a")], LEVELS_MS, ARRIVAL) is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"DELAY", None)],
        [(b"DELAY", b"")],
        [(b"DELAY", b"0")],
        [(b"DELAY", b"19")],
        [(b"DELAY", b"-1")],
        [(b"TIMER_DELAY_MS", b"-5")],
        [(b"TIMER_DELAY_MS", b"1.5")],
        [(b"TIMER_DELAY_MS", b" 5")],
        [(b"TIMER_DELAY_SEC", "५".encode())],
        [(b"TIMER_DELIVER_MS", b"9" * 19)],
        [(b"TIMER_DELIVER_MS", b"\xff")],
        [(b"DELAY", b"1"), (b"TIMER_DELAY_SEC", b"1")],
        [(b"DELAY", b"1"), (b"DELAY", b"1")],
    ],
)
def test_malformed_and_contradicting_headers_are_refused(headers):
    with pytest.raises(InvalidHeaderError):
        parse_due_time(headers, LEVELS_MS, ARRIVAL)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"9" * 19, "'9999999999999999999'; it must be a number of at most 18 decimal digits."),
        (b"9" * 18 + b"x", "'999999999999999999x'; it must be a number in decimal digits."),
        (None, "null; it must be a number in decimal digits."),
    ],
)
def test_the_message_says_what_is_wrong(value, reason):
    with pytest.raises(InvalidHeaderError) as refused:
        parse_due_time([(b"TIMER_DELAY_MS", value)], LEVELS_MS, ARRIVAL)
    assert str(refused.value) == f"Header TIMER_DELAY_MS is {reason}"


def test_the_levels_are_those_of_the_topic():
    assert parse_due_time([(b"DELAY", b"2")], levels_ms("500ms 2h"), ARRIVAL) == ARRIVAL + 7_200_000
    with pytest.raises(InvalidHeaderError) as refused:
        parse_due_time([(b"DELAY", b"3")], levels_ms("500ms 2h"), ARRIVAL)
    assert str(refused.value) == "Header DELAY is 3; the levels are 1 to 2; leave the header out for no delay."


@pytest.mark.parametrize(
    "text", ["", " ", "5", "5x", "1s,2s", "1s  2s", "-1s", "1.5s", " 1s", "१s", " ".join(["1s"] * 101)]
)
def test_malformed_levels(text):
    with pytest.raises(ConfigError, match="Value must be 1 to 100 delays"):
        delay_levels("kbroker.delay.levels", text)
