"""Parsing, validating and formatting of config values, with Kafka's error messages."""

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import Validator
from kbroker.config.validators import (
    bootstrap_servers,
    client_match_patterns,
    gzip_level,
    list_of,
    non_empty_string,
    one_of,
    one_of_ignoring_case,
    quorum_voters,
    share_offset_reset,
    throttled_replicas,
)
from kbroker.config.values import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    ConfigError,
    ConfigType,
    Value,
    format_value,
    parse_value,
)
from protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("config_type", "text", "value"),
    [
        (BOOLEAN, "TRUE", True),
        (BOOLEAN, " false ", False),
        (INT, "+5", 5),
        (INT, " -7 ", -7),
        (INT, "2147483647", 2**31 - 1),
        (SHORT, "-32768", -(2**15)),
        (LONG, "9223372036854775807", 2**63 - 1),
        (DOUBLE, "1e0", 1.0),
        (DOUBLE, ".5", 0.5),
        (DOUBLE, "1.7976931348623157E308", DOUBLE_MAX),
        (STRING, " a b ", "a b"),
        (PASSWORD, " secret ", "secret"),
        (CLASS, "org.example.Some$Inner", "org.example.Some$Inner"),
        (LIST, "", ()),
        (LIST, " a , b,c", ("a", "b", "c")),
        (LIST, "a,,b", ("a", "", "b")),
    ],
)
def test_parse_value(config_type: ConfigType, text: str, value: Value):
    assert parse_value("x", config_type, text) == value


@pytest.mark.parametrize(
    ("config_type", "text", "reason"),
    [
        (BOOLEAN, "yes", "Expected value to be either true or false"),
        (BOOLEAN, "", "Expected value to be either true or false"),
        (INT, "2147483648", "Not a number of type INT"),
        (INT, "1_000", "Not a number of type INT"),
        (INT, "1.5", "Not a number of type INT"),
        (INT, "٣", "Not a number of type INT"),
        (INT, "9" * 5000, "Not a number of type INT"),
        (SHORT, "70000", "Not a number of type SHORT"),
        (LONG, "", "Not a number of type LONG"),
        (LONG, "9223372036854775808", "Not a number of type LONG"),
        (DOUBLE, "nan", "Not a number of type DOUBLE"),
        (DOUBLE, "x", "Not a number of type DOUBLE"),
        (CLASS, "", "Class  could not be found."),
    ],
)
def test_text_of_another_type_is_rejected(config_type: ConfigType, text: str, reason: str):
    with pytest.raises(ConfigError) as raised:
        parse_value("some.config", config_type, text)
    assert str(raised.value) == f"Invalid value {text} for configuration some.config: {reason}"
    assert raised.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (-1, "-1"),
        ((), ""),
        (("a", "b"), "a,b"),
        (0.5, "0.5"),
        (100.0, "100.0"),
        (12345678.0, "1.2345678E7"),
        (10_000_000.0, "1.0E7"),
        (9_999_999.0, "9999999.0"),
        (1e-5, "1.0E-5"),
        (0.001, "0.001"),
        (DOUBLE_MAX, "1.7976931348623157E308"),
    ],
)
def test_values_are_formatted_as_in_java(value: Value, text: str | None):
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("validator", "value", "message"),
    [
        (one_of("a", "b"), "c", "Invalid value c for configuration x: String must be one of: a, b"),
        (
            one_of_ignoring_case("A", "B"),
            "c",
            "Invalid value c for configuration x: String must be one of (case insensitive): A, B",
        ),
        (non_empty_string, "", "Invalid value  for configuration x: String must be non-empty"),
        (gzip_level, 0, "Invalid value 0 for configuration x: Value must be between 1 and 9 or equal to -1"),
        (list_of("a", "b"), ("a", "c"), "Invalid value c for configuration x: String must be one of: a, b"),
        (list_of(), ("a", "", "b"), "Configuration 'x' values must not be empty."),
        (list_of("a", "b", empty=False), (), "Configuration 'x' must not be empty. Valid values include: [a, b]"),
        (list_of(empty=False), (), "Configuration 'x' must not be empty. Valid values include: any non-empty value"),
        (
            quorum_voters,
            ("1@h",),
            "Invalid configuration value for x. Each entry should be in the form `{id}@{host}:{port}`.",
        ),
        (
            bootstrap_servers,
            ("h",),
            "Failed to parse host name from h for the configuration x. "
            'Each entry should be in the form "{host}:{port}"',
        ),
        (client_match_patterns, ("client_id=[",), "Illegal client matching pattern: client_id=["),
        (
            client_match_patterns,
            ("client_id=" + "(" * 7000,),
            "Illegal client matching pattern: client_id=" + "(" * 7000,
        ),
        (client_match_patterns, ("who=me",), "Illegal client matching pattern: who=me"),
    ],
)
def test_validators_raise_kafkas_error_messages(validator: Validator, value: Value, message: str):
    with pytest.raises(ConfigError) as raised:
        validator("x", value)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", [(), ("*",), ("0:1",), ("0:1", "12:3")])
def test_throttled_replicas_are_pairs_or_a_star(value: Value):
    throttled_replicas("x", value)


@pytest.mark.parametrize("value", [("0",), ("0:1:2",), ("*", "0:1"), ("x:1",), ("-1:2",)])
def test_other_throttled_replicas_are_rejected(value: Value):
    with pytest.raises(ConfigError, match=r"must be the literal '\*' or a list of replicas"):
        throttled_replicas("x", value)


@pytest.mark.parametrize(
    "text", ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2H3.5S", "by_duration:P2D"]
)
def test_valid_share_offset_resets(text: str):
    share_offset_reset("x", text)


@pytest.mark.parametrize(
    "text", ["", "EARLIEST", "none", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1H"]
)
def test_invalid_share_offset_resets(text: str):
    with pytest.raises(KafkaError, match="The value must be either"):
        share_offset_reset("x", text)
