"""Log events: their two forms, and that one event is one line."""

import json
import logging
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.runtime.event_log import MAX_VALUE_CHARACTERS, EventLogger, LogEvent, formatter

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}"


def record(msg: object, level: int = logging.INFO, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("kbroker.server", level, "f.py", 1, msg, (), info)


def failed(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_the_readable_form():
    event = LogEvent(
        "connection closed", {"peer": "1.2.3.4:5", "client": "my app", "size": 7, "last": True, "no": None}
    )
    line = formatter("text").format(record(event, logging.WARNING))
    expected = 'WARNING kbroker.server: connection closed peer=1.2.3.4:5 client="my app" size=7 last=true'
    assert re.fullmatch(f"{TIME} {re.escape(expected)}", line)


def test_the_json_form():
    fields = {
        "peer": "1.2.3.4:5",
        "client": 'a "b"\n',
        "size": 7,
        "last": True,
        "no": None,
        "time": "noon",
        "raw": b"xy",
    }
    out = json.loads(formatter("json").format(record(LogEvent("closed", fields))))
    assert re.fullmatch(TIME, out.pop("time"))
    assert out == {
        "level": "INFO", "logger": "kbroker.server", "message": "closed", "peer": "1.2.3.4:5", "client": 'a "b"\n',
        "size": 7, "last": True, "time_": "noon", "raw": "<2 bytes>",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', '"say \\"no\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\nline\r", '"line\\nline\\r"'),
        ("\x1b[31m\u2028\x85", '"\\x1b[31m\\u2028\\x85"'),
        ("lone \ud800", '"lone \\ud800"'),
        ("grün", "grün"),
        (b"secret", '"<6 bytes>"'),
        (bytearray(3), '"<3 bytes>"'),
        (memoryview(b"12"), '"<2 bytes>"'),
        (1.5, "1.5"),
        (False, "false"),
        (ValueError(), "ValueError"),
        (OSError(28, "No space"), '"[Errno 28] No space"'),
        ("x" * 600, f'"{"x" * MAX_VALUE_CHARACTERS}... (600 characters)"'),
    ],
)
def test_values(value: object, shown: str):
    assert str(LogEvent("m", {"v": value})) == f"m v={shown}"


@given(st.text(), st.text(), st.sampled_from(["text", "json"]))
def test_one_event_is_one_line(message: str, value: str, form: str):
    for msg in (LogEvent("event", {"value": value}), message + value):
        line = formatter(form).format(record(msg))
        assert len(line.splitlines()) == 1
        line.encode()
        if form == "json":
            json.loads(line)


def test_tracebacks():
    error = failed(KeyError("what a client\nhas sent"))
    text = formatter("text")
    assert len(text.format(record(LogEvent("m", {}), logging.WARNING, error)).splitlines()) == 1
    first, *rest = text.format(record(LogEvent("m", {}), logging.ERROR, error)).splitlines()
    assert first.endswith("kbroker.server: m")
    assert len(rest) > 2
    assert all(line.startswith("    ") for line in rest)
    out = json.loads(formatter("json").format(record(LogEvent("m", {}), logging.ERROR, error)))
    assert out["traceback"].startswith("Traceback")


@pytest.mark.parametrize("show", [formatter("text").format, formatter("json").format])
def test_an_exception_is_logged_with_its_position_and_without_its_text(
    show: Callable[[logging.LogRecord], str], caplog: pytest.LogCaptureFixture
):
    EventLogger("kbroker.test").failure("request failed", failed(KeyError("SECRET")), peer="p")
    EventLogger("kbroker.test").failure("disk failed", failed(OSError(5, "EIO", "/data/t-0")))
    request, disk = map(show, caplog.records)
    assert "SECRET" not in request
    assert "KeyError" in request
    assert "in failed" in request
    assert "EIO" in disk


def test_levels_are_those_of_the_logger(caplog: pytest.LogCaptureFixture):
    log = EventLogger("kbroker.test")
    with caplog.at_level(logging.WARNING, "kbroker.test"):
        log.debug("a")
        log.info("b")
        log.warning("c")
        log.error("d")
        assert log.enabled(logging.WARNING)
        assert not log.enabled(logging.INFO)
    assert [str(record.msg) for record in caplog.records] == ["c", "d"]
