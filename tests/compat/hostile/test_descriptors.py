"""A broker with few file descriptors, while connections or logs need more."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.hostile.raw_client import RawClient, create_topic, end_offset, produce_record
from tests.compat.support import BrokerProcess, eventually, need_own_broker, running_broker

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

SEGMENT_BYTES = 10_000


@contextmanager
def small_broker(directory: Path, file_limit: int) -> Iterator[BrokerProcess]:
    need_own_broker()
    settings = {"log.flush.offset.checkpoint.interval.ms": "500", "log.retention.check.interval.ms": "500"}
    with running_broker(directory, settings, file_limit=file_limit) as broker:
        yield broker


def lines(broker: BrokerProcess, text: str) -> list[str]:
    return [line for line in broker.errors.splitlines() if text in line]


def is_served(broker: BrokerProcess) -> bool:
    with RawClient(broker.bootstrap, "late") as client:
        try:
            client.request(ApiVersionsRequest(), 0, ApiVersionsResponse)
        except ConnectionClosedError:
            return False
    return True


def test_idle_connections_leave_file_descriptors_to_the_logs(tmp_path: Path) -> None:
    """600 connections and 300 descriptors: earlier clients are served, their logs roll and are synced, and the first
    Fetch loads its handler."""
    partitions, rounds = 20, 4
    with small_broker(tmp_path, 300) as broker, RawClient(broker.bootstrap, "before") as client:
        create_topic(
            broker.bootstrap, "held", partitions, internal_segment_bytes=SEGMENT_BYTES, flush_ms=200, retention_ms=-1
        )
        assert produce_record(client, "held", 0) is ErrorCode.NONE
        crowd = [RawClient(broker.bootstrap, "idle") for _ in range(600)]
        eventually(lambda: lines(broker, "out of file descriptors"), "a line in the log")
        for _ in range(rounds):
            for partition in range(partitions):
                assert produce_record(client, "held", partition, SEGMENT_BYTES // 2) is ErrorCode.NONE
        assert end_offset(client, "held", 0) == rounds + 1
        assert len(list(broker.partition_dir("held", 0).glob("*.log"))) > 1
        assert len(lines(broker, "out of file descriptors")) <= 6, "a host is logged a few times a minute"
        for idle in crowd:
            idle.close()
        eventually(lambda: is_served(broker), "a response on a new connection")
        assert not re.search("offline|internal error|Traceback", broker.errors), broker.errors
        client.close()
        broker.stop()
        assert not lines(broker, "closed cleanly")


def test_more_logs_than_file_descriptors(tmp_path: Path) -> None:
    """A log without a descriptor is unavailable and logged; clients can connect, and other logs are served. When logs
    are deleted, the unavailable ones are opened."""
    limit, partitions = 150, 80
    with small_broker(tmp_path, limit) as broker, RawClient(broker.bootstrap, "before") as client:
        create_topic(broker.bootstrap, "first", partitions)
        create_topic(broker.bootstrap, "second", partitions, ErrorCode.KAFKA_STORAGE_ERROR, retention_ms=-1)
        served = [partition for partition in range(partitions) if produce_record(client, "second", partition) == 0]
        assert 0 < len(served) < partitions
        missing = next(partition for partition in range(partitions) if partition not in served)
        assert produce_record(client, "second", missing) is ErrorCode.KAFKA_STORAGE_ERROR
        assert lines(broker, f"log cannot be opened partition=second-{missing}")
        assert is_served(broker)
        assert end_offset(client, "second", served[0]) == 1
        request = DeleteTopicsRequest(topic_names=["first"], timeout_ms=20_000)
        assert client.request(request, 5, DeleteTopicsResponse).responses[0].error_code == 0
        eventually(lambda: produce_record(client, "second", missing) is ErrorCode.NONE, "the log is opened")
        # Logged when all logs have been opened; requests are served before.
        eventually(lambda: lines(broker, f"log opened partition=second-{missing}"), "a line in the log")
        assert not re.search("offline|internal error|Traceback", broker.errors), broker.errors
        client.close()
        broker.stop()
