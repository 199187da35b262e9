"""Error texts, and the selection of partitions."""

import pytest

from kbroker.cli.common.client import (
    client_error_text,
    error_code_text,
    select_partitions,
    topic_error,
)
from kbroker.cli.common.errors import CliError, exception_text
from kbroker.cli.common.values import parse_topic_partitions
from kbroker.client.cluster import UnknownBroker
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.requests import BrokerError
from kbroker.replica.logs.data_directory import ForeignDirectory


def test_error_texts() -> None:
    assert error_code_text(36, "Topic 't' already exists.") == "Topic 't' already exists (TOPIC_ALREADY_EXISTS)"
    assert error_code_text(68) == "Non empty group (NON_EMPTY_GROUP)"
    assert error_code_text(9999, "odd") == "odd (error 9999)"
    assert str(topic_error("t", 3)) == "topic t does not exist"


@pytest.mark.parametrize(
    ("unknown", "suggestion"),
    [
        ("topic config name: retention", " (did you mean retention.ms?)"),
        ("topic config name: retention_ms", " (did you mean retention.ms?)"),
        ("topic config name: log.retention.ms", " (did you mean retention.ms?)"),
        ("topic config name: zzz", ""),
        ("group config name: consumer.session.timeout", " (did you mean consumer.session.timeout.ms?)"),
        ("broker config name: retention.ms (did you mean log.retention.ms?)", ""),
    ],
)
def test_an_unknown_config_has_a_suggestion(unknown: str, suggestion: str) -> None:
    assert error_code_text(40, f"Unknown {unknown}") == f"Unknown {unknown}{suggestion} (INVALID_CONFIG)"


def test_selected_partitions_must_exist() -> None:
    known = {("a", 0): 1, ("a", 1): 2, ("b", 0): 1}
    assert select_partitions(known, []) == known
    assert select_partitions(known, [parse_topic_partitions("a:1"), parse_topic_partitions("b")]) == {
        ("a", 1): 2,
        ("b", 0): 1,
    }
    with pytest.raises(CliError, match="topic a has no partition 2: it has 2"):
        select_partitions(known, [parse_topic_partitions("a:2")])


def test_errors_of_the_client() -> None:
    assert client_error_text(BrokerError(68, "group g")) == "group g: Non empty group (NON_EMPTY_GROUP)"
    assert client_error_text(BrokerError(40, "topic t", "Bad.")) == "topic t: Bad (INVALID_CONFIG)"
    failure = BrokerUnreachable(111, "Connection refused")
    assert client_error_text(failure) == "Connection refused"
    failure.address = "h:9092"
    assert client_error_text(failure) == "no response from h:9092: Connection refused"
    assert client_error_text(UnknownBroker(4)) == "there is no broker 4"


def test_exception_texts() -> None:
    assert exception_text(FileNotFoundError(2, "No such file or directory", "x")) == "x: No such file or directory"
    assert exception_text(OSError(111, "Connection refused")) == "Connection refused"
    assert exception_text(RuntimeError()) == "RuntimeError"
    assert exception_text(RuntimeError("why")) == "RuntimeError: why"
    assert exception_text(CliError("so")) == "so"
    assert exception_text(ForeignDirectory("it is another's")) == "it is another's"
