"""Error texts, and the selection of partitions."""

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError

from kbroker.cli.common.client import (
    error_code_text,
    read_again,
    rephrase_client_error,
    select_partitions,
    topic_error_text,
)
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.parsing import parse_topic_partitions


def test_error_texts() -> None:
    assert error_code_text(36, "Topic 't' already exists.") == "Topic 't' already exists (TOPIC_ALREADY_EXISTS)"
    assert error_code_text(68) == "Non empty group (NON_EMPTY_GROUP)"
    assert error_code_text(9999, "odd") == "odd (error 9999)"
    assert topic_error_text("t", 3) == "topic t does not exist"
    assert rephrase_client_error("[Error 40] InvalidConfigurationError: bad: value\nhere") == (
        "bad: value\nhere (INVALID_CONFIG)"
    )
    assert rephrase_client_error("whatever") == "whatever"


def test_selected_partitions_must_exist() -> None:
    known = {("a", 0): 1, ("a", 1): 2, ("b", 0): 1}
    assert select_partitions(known, []) == known
    assert select_partitions(known, [parse_topic_partitions("a:1"), parse_topic_partitions("b")]) == {
        ("a", 1): 2,
        ("b", 0): 1,
    }
    with pytest.raises(CliError, match="topic a has no partition 2: it has 2"):
        select_partitions(known, [parse_topic_partitions("a:2")])


def test_a_read_is_repeated_while_the_broker_cannot_be_reached() -> None:
    """kafka-python may choose a broker that was just killed."""
    errors: list[Exception] = [KafkaConnectionError("refused"), NodeNotReadyError(1)]

    def call() -> str:
        if errors:
            raise errors.pop()
        return "response"

    assert read_again(call) == "response"
    errors.append(KafkaTimeoutError())
    with pytest.raises(KafkaTimeoutError):
        read_again(call)
