"""Config values: parse and format them by the types of Kafka's ConfigDef.

Configs are sent and stored as text. A parsed value is a bool, int, float, str, a tuple of str (LIST), or None for a
config without a value.
"""

import re
from enum import IntEnum

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

Value = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

# Kafka displays this instead of a password.
HIDDEN = "[hidden]"


class ConfigType(IntEnum):
    """The types, numbered as in DescribeConfigs' config_type."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = ConfigType

_BITS = {SHORT: 16, INT: 32, LONG: 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CLASS_NAME = re.compile(r"[^\W\d]\w*([.$][^\W\d]\w*)*")


class ConfigError(KafkaError):
    """INVALID_CONFIG, with a message that names the config and the value."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)

    def __str__(self) -> str:
        return self.message or ""


def invalid_value(name: str, value: Value, reason: str) -> ConfigError:
    return ConfigError(f"Invalid value {format_java_value(value)} for configuration {name}: {reason}")


def parse_value(name: str, config_type: ConfigType, text: str | None) -> Value:
    """Parse the text of config `name`; validators check ranges. Raises ConfigError if the text is not of the type."""
    if text is None:
        return None
    text = text.strip()
    if config_type in _BITS:
        return _parse_integer(name, config_type, text)
    if config_type is BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise invalid_value(name, text, "Expected value to be either true or false")
        return text.lower() == "true"
    if config_type is DOUBLE:
        if not _DECIMAL.fullmatch(text):
            raise invalid_value(name, text, "Not a number of type DOUBLE")
        return float(text)
    if config_type is LIST:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    if config_type is CLASS and not _CLASS_NAME.fullmatch(text):
        raise invalid_value(name, text, f"Class {text} could not be found.")
    return text


def _parse_integer(name: str, config_type: ConfigType, text: str) -> int:
    # int() alone would accept "1_000" and " 1". The length limit avoids the slow conversion of huge texts.
    if not _INTEGER.fullmatch(text) or len(text) > 40:
        raise invalid_value(name, text, f"Not a number of type {config_type.name}")
    number = int(text)
    limit = 1 << (_BITS[config_type] - 1)
    if not -limit <= number < limit:
        raise invalid_value(name, text, f"Not a number of type {config_type.name}")
    return number


def format_value(value: Value) -> str | None:
    """Return the text of a value as DescribeConfigs does; the inverse of parse_value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _format_double(value)
    return str(value)


def format_java_value(value: Value) -> str:
    """Return a value in the form of Kafka's error messages: a list in brackets, None as null."""
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    return format_value(value) or ("null" if value is None else "")


def _format_double(value: float) -> str:
    """Format a number like Java's Double.toString: always with a point, and below 1e-3 and from 1e7 on as 1.0E7."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = _scientific(value).partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _scientific(value: float) -> str:
    """Return scientific notation with the fewest digits that identify the value."""
    texts = (f"{value:.{digits}e}" for digits in range(17))
    return next(text for text in texts if float(text) == value)
