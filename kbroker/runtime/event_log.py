"""The broker's log: events, each a constant message with fields, on one line.

    event_log = EventLogger("kbroker.server")
    event_log.warning("connection closed", peer="10.0.0.7:5000", reason="malformed request")

Events go through Python's logging. `formatter` returns the formatters for kbroker.log.format. Fields that are None are
omitted. For bytes only the size is logged: keys, values and headers of records must not get into a log.
"""

import logging
import re
from dataclasses import dataclass
from typing import Any

# Longer values are cut.
MAX_VALUE_CHARACTERS = 500
_PLAIN = re.compile(r"[^\s=\"\\\x00-\x20\x7f]+")
# The keys of a JSON line in addition to its event's fields.
_RESERVED = ("time", "level", "logger", "message", "traceback")

Field = object


@dataclass(slots=True, eq=False)
class LogEvent:
    """An event: a message with fields. `str` returns both as readable text."""

    message: str
    fields: dict[str, Field]

    def __str__(self) -> str:
        parts = [self.message]
        parts += [f"{name}={_readable(value)}" for name, value in self.fields.items() if value is not None]
        return " ".join(parts)


class EventLogger:
    """Logs events to the Python logger of this name."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def event(self, level: int, message: str, /, **fields: Field) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, LogEvent(message, fields))

    def debug(self, message: str, /, **fields: Field) -> None:
        self.event(logging.DEBUG, message, **fields)

    def info(self, message: str, /, **fields: Field) -> None:
        self.event(logging.INFO, message, **fields)

    def warning(self, message: str, /, **fields: Field) -> None:
        self.event(logging.WARNING, message, **fields)

    def error(self, message: str, /, **fields: Field) -> None:
        self.event(logging.ERROR, message, **fields)

    def failure(self, message: str, error: BaseException, /, **fields: Field) -> None:
        """Log a defect of the broker, with the traceback.

        The exception's text is logged only for OSError: others may quote data of a client.
        """
        kind = type(error).__name__
        shown = Hidden(f"{kind}: {error}" if isinstance(error, OSError) else kind)
        self._logger.error(LogEvent(message, {**fields, "error": kind}), exc_info=(Hidden, shown, error.__traceback__))

    def enabled(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)


class Hidden(Exception):
    """Replaces an exception in the log. Its text is the type, and the message if it may be logged."""


def plain(value: Field) -> bool | int | float | str:
    """Return a field's value as a JSON type, strings cut to MAX_VALUE_CHARACTERS."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    text = str(value)
    if not text and isinstance(value, BaseException):
        text = type(value).__name__
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}... ({len(text)} characters)"


def _readable(value: Field) -> str:
    value = plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{one_line(escaped)}"'


def one_line(text: str) -> str:
    """Escape line ends and other control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value ...`. For errors, the traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        text = one_line(record.getMessage())
        line = f"{_time(self, record)} {record.levelname:<7} {record.name}: {text}"
        if record.exc_info and record.exc_info[1] is not None:
            if record.levelno < logging.ERROR:
                return f"{line} exception={_readable(_last_line(record.exc_info[1]))}"
            trace = self.formatException(record.exc_info).splitlines()
            return "\n    ".join((line, *map(one_line, trace)))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the event's fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        event = record.msg if isinstance(record.msg, LogEvent) else LogEvent(record.getMessage(), {})
        out: dict[str, Any] = {
            "time": _time(self, record),
            "level": record.levelname,
            "logger": record.name,
            "message": event.message,
        }
        for name, value in event.fields.items():
            if value is not None:
                out[name + "_" if name in _RESERVED else name] = plain(value)
        if record.exc_info and record.exc_info[1] is not None:
            out["traceback"] = self.formatException(record.exc_info)
        return json.dumps(out)


def _time(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the time as ISO 8601 with the UTC offset of local time."""
    seconds = formatter.formatTime(record, "%Y-%m-%dT%H:%M:%S")
    return f"{seconds}.{int(record.msecs):03d}{formatter.formatTime(record, '%z')}"


def _last_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def formatter(form: str) -> logging.Formatter:
    """Return the formatter for a value of kbroker.log.format, text or json."""
    return JsonFormatter() if form == "json" else TextFormatter()
