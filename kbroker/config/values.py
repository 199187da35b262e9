"""Config values: text to value and back, by the types of Kafka's ConfigDef.

Configs travel and are stored as text. `parse` gives bool, int, float, str, a tuple of str for a LIST, or None
for a config without a value; `show` gives the text that DescribeConfigs answers with.
"""

import re
from enum import IntEnum

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

Value = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

HIDDEN = "[hidden]"


class ConfigType(IntEnum):
    """The numbers are those of DescribeConfigs' config_type."""

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
    """INVALID_CONFIG with a sentence that names the config and the value."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)

    def __str__(self) -> str:
        return self.message or ""


def invalid_value(name: str, value: Value, reason: str) -> ConfigError:
    return ConfigError(f"Invalid value {format_java_value(value)} for configuration {name}: {reason}")


def parse_value(name: str, kind: ConfigType, text: str | None) -> Value:
    """Raises ConfigError when the text is not of the type. Ranges are the validator's."""
    if text is None:
        return None
    text = text.strip()
    if kind in _BITS:
        return _parse_integer(name, kind, text)
    if kind is BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise invalid_value(name, text, "Expected value to be either true or false")
        return text.lower() == "true"
    if kind is DOUBLE:
        if not _DECIMAL.fullmatch(text):
            raise invalid_value(name, text, "Not a number of type DOUBLE")
        return float(text)
    if kind is LIST:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    if kind is CLASS and not _CLASS_NAME.fullmatch(text):
        raise invalid_value(name, text, f"Class {text} could not be found.")
    return text


def _parse_integer(name: str, kind: ConfigType, text: str) -> int:
    # int() alone would take "1_000" and " 1"; the length bound keeps a huge text from a slow conversion.
    if not _INTEGER.fullmatch(text) or len(text) > 40:
        raise invalid_value(name, text, f"Not a number of type {kind.name}")
    number = int(text)
    limit = 1 << (_BITS[kind] - 1)
    if not -limit <= number < limit:
        raise invalid_value(name, text, f"Not a number of type {kind.name}")
    return number


def format_value(value: Value) -> str | None:
    """The text of a value; `parse` of it gives the value again."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _show_double(value)
    return str(value)


def format_java_value(value: Value) -> str:
    """A value as it stands in Kafka's messages: a list in brackets, nothing as null."""
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    return format_value(value) or ("null" if value is None else "")


def _show_double(value: float) -> str:
    """As Java prints a double: scientific from ten million up and below a thousandth, always with a point."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{value!r}".partition("e") if "e" in repr(value) else _scientific(value)
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _scientific(value: float) -> tuple[str, str, str]:
    for digits in range(17):
        text = f"{value:.{digits}e}"
        if float(text) == value:
            return text.partition("e")
    return f"{value:.17e}".partition("e")
