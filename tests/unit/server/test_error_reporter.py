"""What the log says of refusals, and how much of it."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.api.context import RequestContext
from kbroker.runtime.metrics import RequestStats
from kbroker.server import error_reporter as net
from kbroker.server.error_reporter import LINES_IN_ALL, LINES_OF_A_KIND, MAX_KINDS, ErrorReporter, level_of
from protocol.errors import ErrorCode


class Time:
    def __init__(self) -> None:
        self.ms = 0
        self.callbacks: list[Callable[[], None]] = []

    def later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.callbacks.append(callback)
        return SimpleNamespace(cancel=self.callbacks.clear)

    def minute(self) -> None:
        self.ms += 60_000
        (callback,) = self.callbacks
        self.callbacks.clear()
        callback()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def refusals(time: Time, caplog: pytest.LogCaptureFixture) -> ErrorReporter:
    caplog.set_level(logging.DEBUG, "kbroker.server")
    return ErrorReporter(lambda: time.ms, time.later)


def asked(peer: str = "10.0.0.7:5000", api: int = 0) -> RequestContext:
    handler = SimpleNamespace(stats=RequestStats(api, 9))
    return RequestContext(cast(Any, SimpleNamespace(peer=peer)), cast(Any, handler), 9, 1, "my app", 0)


def test_a_refused_request_is_told_with_who_what_and_why(refusals: ErrorReporter, caplog: pytest.LogCaptureFixture):
    refusals.request(asked(), ErrorCode.CORRUPT_MESSAGE, 3, "CRC does not match", {"topic": "t", "partition": 2})
    assert [(one.levelname, one.message) for one in caplog.records] == [
        (
            "WARNING",
            'request refused peer=10.0.0.7:5000 client="my app" api=Produce version=9 error=CORRUPT_MESSAGE '
            'reason="CRC does not match" count=3 topic=t partition=2',
        )
    ]
    assert refusals.errors == {(0, ErrorCode.CORRUPT_MESSAGE): 3}


def test_a_closed_connection_is_told_with_who_and_why(refusals: ErrorReporter, caplog: pytest.LogCaptureFixture):
    refusals.connection("10.0.0.7:5000", "app", asked(), "malformed request", {"detail": "too short"})
    refusals.connection("10.0.0.7:5000", None, None, "frame too large", {"size": 7})
    assert [one.message for one in caplog.records] == [
        'connection closed peer=10.0.0.7:5000 client=app reason="malformed request" api=Produce version=9 '
        'detail="too short"',
        'connection closed peer=10.0.0.7:5000 reason="frame too large" size=7',
    ]
    assert refusals.closed == {"malformed request": 1, "frame too large": 1}


@pytest.mark.parametrize(
    ("api", "code", "level"),
    [
        (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, logging.DEBUG),
        (12, ErrorCode.REBALANCE_IN_PROGRESS, logging.DEBUG),
        (11, ErrorCode.MEMBER_ID_REQUIRED, logging.DEBUG),
        (8, ErrorCode.NOT_COORDINATOR, logging.DEBUG),
        (0, ErrorCode.INVALID_RECORD, logging.WARNING),
        (19, ErrorCode.TOPIC_ALREADY_EXISTS, logging.INFO),
        (0, ErrorCode.KAFKA_STORAGE_ERROR, logging.ERROR),
        (1, ErrorCode.UNKNOWN_SERVER_ERROR, logging.ERROR),
    ],
)
def test_levels(api: int, code: ErrorCode, level: int):
    assert level_of(api, code) == level


def test_a_client_that_tries_again_and_again_is_told_a_few_times_and_then_as_a_number(
    refusals: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    for number in range(1000):
        # Each time from another port.
        refusals.request(asked(f"10.0.0.7:{number}"), ErrorCode.INVALID_RECORD, 1, None, {})
    assert len(caplog.records) == LINES_OF_A_KIND
    refusals.request(asked("10.0.0.7:1"), ErrorCode.INVALID_TIMESTAMP, 1, None, {})
    refusals.request(asked("10.0.0.8:1"), ErrorCode.INVALID_RECORD, 1, None, {})
    assert len(caplog.records) == LINES_OF_A_KIND + 2
    caplog.clear()
    time.minute()
    assert [one.message for one in caplog.records] == [
        "refusals not told peer=10.0.0.7 api=Produce reason=INVALID_RECORD count=995 seconds=60"
    ]
    assert refusals.suppressed == 995
    assert refusals.errors[0, ErrorCode.INVALID_RECORD] == 1001
    refusals.request(asked(), ErrorCode.INVALID_RECORD, 1, None, {})
    assert len(caplog.records) == 2


def test_many_clients_neither_flood_the_log_nor_fill_the_memory(
    refusals: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    for number in range(MAX_KINDS * 2):
        refusals.connection(f"host-{number}:1", None, None, "malformed frame", {})
    assert len(caplog.records) == LINES_IN_ALL
    assert len(refusals._kinds) == MAX_KINDS + 1
    caplog.clear()
    time.minute()
    assert len(caplog.records) == net.LINES_LEFT_OUT + 1
    assert sum(one.msg.fields["count"] for one in caplog.records) == MAX_KINDS * 2 - LINES_IN_ALL
    assert len(refusals._kinds) == 0
    assert time.callbacks == []


def test_what_is_below_the_level_is_counted_only(refusals: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "kbroker.server")
    refusals.request(asked(), ErrorCode.NOT_COORDINATOR, 1, None, {})
    assert caplog.records == []
    assert time.callbacks == []
    assert refusals.errors == {(0, ErrorCode.NOT_COORDINATOR): 1}


def test_a_mistake_of_ours_is_told_without_what_was_sent(refusals: ErrorReporter, caplog: pytest.LogCaptureFixture):
    refusals.failed("10.0.0.7:1", "app", asked(), KeyError("SECRET"))
    assert "SECRET" not in caplog.text
    assert "KeyError" in caplog.text


def test_what_was_left_out_is_told_at_the_stop(refusals: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture):
    for _ in range(9):
        refusals.connection("h:1", None, None, "malformed frame", {})
    refusals.stop()
    refusals.stop()
    assert caplog.records[-1].message == 'refusals not told peer=h reason="malformed frame" count=4 seconds=0'
    assert time.callbacks == []
