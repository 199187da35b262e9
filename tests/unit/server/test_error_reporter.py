"""The log lines about errors, and the limits on their number."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.api.context import Identity, RequestContext
from kbroker.api.response_errors import report_errors
from kbroker.common import Principal
from kbroker.runtime.metrics import RequestStats
from kbroker.server.error_reporter import (
    MAX_KINDS,
    MAX_LINES,
    MAX_LINES_EACH,
    MAX_SUMMARY_LINES,
    ErrorReporter,
    level_of,
)
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
def errors(time: Time, caplog: pytest.LogCaptureFixture) -> ErrorReporter:
    caplog.set_level(logging.DEBUG, "kbroker.server")
    return ErrorReporter(lambda: time.ms, time.later)


def request_context(peer: str = "10.0.0.7:5000", api: int = 0, errors: ErrorReporter | None = None) -> RequestContext:
    handler = SimpleNamespace(stats=RequestStats(api, 9))
    identity = Identity("PLAINTEXT", Principal("User", "alice"))
    connection = SimpleNamespace(peer=peer, identity=identity, errors=errors)
    return RequestContext(cast(Any, connection), cast(Any, handler), 9, 1, "my app", 0)


def test_an_error_code_is_logged_with_the_client_the_api_and_the_reason(
    errors: ErrorReporter, caplog: pytest.LogCaptureFixture
):
    errors.report_error(
        request_context(), ErrorCode.CORRUPT_MESSAGE, 3, "CRC does not match", {"topic": "t", "partition": 2}
    )
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "WARNING",
            'request refused peer=10.0.0.7:5000 client="my app" api=Produce version=9 error=CORRUPT_MESSAGE '
            'reason="CRC does not match" count=3 topic=t partition=2',
        )
    ]
    assert errors.errors == {(0, ErrorCode.CORRUPT_MESSAGE): 3}


def test_a_closed_connection_is_logged_with_the_client_and_the_reason(
    errors: ErrorReporter, caplog: pytest.LogCaptureFixture
):
    errors.report_close("10.0.0.7:5000", "app", request_context(), "malformed request", {"detail": "too short"})
    errors.report_close("10.0.0.7:5000", None, None, "frame too large", {"size": 7})
    assert [record.message for record in caplog.records] == [
        'connection closed peer=10.0.0.7:5000 client=app reason="malformed request" api=Produce version=9 '
        'detail="too short"',
        'connection closed peer=10.0.0.7:5000 reason="frame too large" size=7',
    ]
    assert errors.closed == {"malformed request": 1, "frame too large": 1}


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


def test_a_foreign_protocol_is_logged_once_a_minute(
    errors: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    """A browser, a health check or a client with the wrong security protocol repeats it without end."""
    for reason in ("an HTTP request on a listener with TLS", "a TLS handshake on a listener without TLS"):
        for number in range(7):
            errors.report_close(f"10.0.0.7:{number}", None, None, reason, {})
        assert [record.message for record in caplog.records] == [f'connection closed peer=10.0.0.7:0 reason="{reason}"']
        caplog.clear()
    time.minute()
    assert [record.message.rpartition("count=")[2] for record in caplog.records] == ["6 seconds=60"] * 2


def test_repeated_errors_are_logged_a_few_times_and_then_counted(
    errors: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    for number in range(1000):
        # Each time from another port.
        errors.report_error(request_context(f"10.0.0.7:{number}"), ErrorCode.INVALID_RECORD, 1, None, {})
    assert len(caplog.records) == MAX_LINES_EACH
    errors.report_error(request_context("10.0.0.7:1"), ErrorCode.INVALID_TIMESTAMP, 1, None, {})
    errors.report_error(request_context("10.0.0.8:1"), ErrorCode.INVALID_RECORD, 1, None, {})
    assert len(caplog.records) == MAX_LINES_EACH + 2
    caplog.clear()
    time.minute()
    assert [record.message for record in caplog.records] == [
        "errors not logged peer=10.0.0.7 api=Produce reason=INVALID_RECORD count=995 seconds=60"
    ]
    assert errors.suppressed == 995
    assert errors.errors[0, ErrorCode.INVALID_RECORD] == 1001
    errors.report_error(request_context(), ErrorCode.INVALID_RECORD, 1, None, {})
    assert len(caplog.records) == 2


def test_the_line_about_suppressed_errors_has_their_level(
    errors: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    """Otherwise a client that repeats a request which is refused for a good reason would cause a warning."""
    caplog.set_level(logging.INFO, "kbroker.server")
    for code in (ErrorCode.INVALID_RECORD, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR):
        for _ in range(9):
            errors.report_error(request_context(api=1), code, 1, None, {})
    caplog.clear()
    time.minute()
    levels = {record.msg.fields["reason"]: record.levelname for record in caplog.records}
    assert levels == {"INVALID_RECORD": "INFO", "OFFSET_OUT_OF_RANGE": "INFO", "KAFKA_STORAGE_ERROR": "WARNING"}


def test_many_clients_neither_flood_the_log_nor_fill_the_memory(
    errors: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    for number in range(MAX_KINDS * 2):
        errors.report_close(f"host-{number}:1", None, None, "malformed frame", {})
    assert len(caplog.records) == MAX_LINES
    assert len(errors._kinds) == MAX_KINDS + 1
    caplog.clear()
    time.minute()
    assert len(caplog.records) == MAX_SUMMARY_LINES + 1
    assert sum(record.msg.fields["count"] for record in caplog.records) == MAX_KINDS * 2 - MAX_LINES
    assert len(errors._kinds) == 0
    assert time.callbacks == []


def test_errors_below_the_log_level_are_only_counted(
    errors: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "kbroker.server")
    errors.report_error(request_context(), ErrorCode.NOT_COORDINATOR, 1, None, {})
    assert caplog.records == []
    assert time.callbacks == []
    assert errors.errors == {(0, ErrorCode.NOT_COORDINATOR): 1}


def test_an_exception_is_logged_without_its_text(errors: ErrorReporter, caplog: pytest.LogCaptureFixture):
    errors.report_failure("10.0.0.7:1", "app", request_context(), KeyError("SECRET"))
    assert "SECRET" not in caplog.text
    assert "KeyError" in caplog.text


def test_the_number_of_suppressed_lines_is_logged_at_the_stop(
    errors: ErrorReporter, time: Time, caplog: pytest.LogCaptureFixture
):
    for _ in range(9):
        errors.report_close("h:1", None, None, "malformed frame", {})
    errors.stop()
    errors.stop()
    assert caplog.records[-1].message == 'errors not logged peer=h reason="malformed frame" count=4 seconds=0'
    assert time.callbacks == []


def test_each_denied_topic_is_recorded_in_the_audit_log(errors: ErrorReporter):
    recorded: list[Any] = []
    errors.audit = cast(Any, SimpleNamespace(record=lambda event, **fields: recorded.append((event, fields))))
    codes = [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic) for topic in ("a", "a", "b")]
    codes.append((ErrorCode.NOT_LEADER_OR_FOLLOWER, "c"))
    context = request_context(errors=errors)
    assert report_errors(context, codes, lambda topic: (None, {"topic": topic, "partition": 0}))
    sender = {"principal": "User:alice", "host": "10.0.0.7", "client": "my app", "api": "Produce"}
    denied = {**sender, "error": "TOPIC_AUTHORIZATION_FAILED"}
    assert recorded == [("denied", {**denied, "topic": topic}) for topic in ("a", "a", "b")]
    assert errors.errors == {(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED): 3, (0, ErrorCode.NOT_LEADER_OR_FOLLOWER): 1}
