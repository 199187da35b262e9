"""A broker with few file descriptors: connections, or logs, would take them all."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.compat.hostile.peer import Peer, create_topic, end_offset, produce
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
    with Peer(broker.bootstrap, "late") as peer:
        try:
            peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
        except AssertionError:
            return False
    return True


def test_idle_connections_leave_file_descriptors_to_the_logs(tmp_path: Path) -> None:
    """600 connections where there are 300 descriptors: those who came before are served, their logs roll and are
    synced, and the first Fetch of all loads its handler."""
    partitions, rounds = 20, 4
    with small_broker(tmp_path, 300) as broker, Peer(broker.bootstrap, "before") as peer:
        create_topic(
            broker.bootstrap, "held", partitions, internal_segment_bytes=SEGMENT_BYTES, flush_ms=200, retention_ms=-1
        )
        assert produce(peer, "held", 0) is ErrorCode.NONE
        crowd = [Peer(broker.bootstrap, "idle") for _ in range(600)]
        eventually(lambda: lines(broker, "out of file descriptors"), "a line in the log")
        for _ in range(rounds):
            for partition in range(partitions):
                assert produce(peer, "held", partition, SEGMENT_BYTES // 2) is ErrorCode.NONE
        assert end_offset(peer, "held", 0) == rounds + 1
        assert len(list(broker.partition_dir("held", 0).glob("*.log"))) > 1
        assert len(lines(broker, "out of file descriptors")) <= 6, "each host is told of a few times a minute"
        for one in crowd:
            one.close()
        eventually(lambda: is_served(broker), "an answer on a new connection")
        assert not re.search("offline|internal error|Traceback", broker.errors), broker.errors
        peer.close()
        broker.stop()
        assert not lines(broker, "closed cleanly")


def test_more_logs_than_file_descriptors(tmp_path: Path) -> None:
    """Logs without a descriptor are unavailable, with a line in the log; clients can connect, the other logs serve, and
    when other logs are deleted those that were left out are opened."""
    limit, partitions = 150, 80
    with small_broker(tmp_path, limit) as broker, Peer(broker.bootstrap, "before") as peer:
        create_topic(broker.bootstrap, "first", partitions)
        create_topic(broker.bootstrap, "second", partitions, retention_ms=-1)
        served = [partition for partition in range(partitions) if produce(peer, "second", partition) == 0]
        assert 0 < len(served) < partitions
        missing = next(partition for partition in range(partitions) if partition not in served)
        assert produce(peer, "second", missing) is ErrorCode.KAFKA_STORAGE_ERROR
        assert lines(broker, f"log cannot be opened partition=second-{missing}")
        assert is_served(broker)
        assert end_offset(peer, "second", served[0]) == 1
        request = DeleteTopicsRequest(topic_names=["first"], timeout_ms=20_000)
        assert peer.ask(request, 5, DeleteTopicsResponse).responses[0].error_code == 0
        eventually(lambda: produce(peer, "second", missing) is ErrorCode.NONE, "the log is opened")
        assert lines(broker, f"log opened partition=second-{missing}")
        assert not re.search("offline|internal error|Traceback", broker.errors), broker.errors
        peer.close()
        broker.stop()
