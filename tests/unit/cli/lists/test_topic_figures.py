"""The figures of `kbroker topics list`: sums over partitions, unknown if the leader of one does not respond."""

from typing import Any

import pytest

from kbroker.cli.topics import list_topics
from kbroker.cli.topics.list_topics import topic_figures
from kbroker.client.admin import LogDirs, MetadataTopic
from kbroker.client.offsets import EARLIEST
from protocol.messages.k02_list_offsets import ListOffsetsPartitionResponse
from protocol.messages.k03_metadata import MetadataResponsePartition

OFFSETS = {"whole": (10, 15), "empty": (7, 7), "view": (0, 4), "away": (0, 9)}


def topic(name: str, *leaders: int) -> MetadataTopic:
    rows = [MetadataResponsePartition(partition_index=index, leader_id=leader) for index, leader in enumerate(leaders)]
    return MetadataTopic(name, bytes(16), False, 0, rows)


def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def offsets(client: Any, led: dict[int, list[tuple[str, int]]], timestamp: int) -> dict[Any, int]:
        assert 2 not in led, "no broker is asked for partitions of others"
        return {(1, at): OFFSETS[at[0]][timestamp != EARLIEST] for at in led[1]}

    def newest(client: Any, led: dict[int, list[tuple[str, int]]], timestamp: int) -> dict[Any, Any]:
        return {
            (1, at): ListOffsetsPartitionResponse(timestamp=-1 if at[0] == "empty" else 1000 + at[1]) for at in led[1]
        }

    sizes = {("whole", 0): 5, ("whole", 1): 6, ("empty", 0): 0, ("away", 0): 1}
    monkeypatch.setattr(list_topics, "describe_log_dirs", lambda client, brokers: {1: LogDirs(sizes, None)})
    monkeypatch.setattr(list_topics, "offsets_at_brokers", offsets)
    monkeypatch.setattr(list_topics, "rows_at_brokers", newest)
    topics = [topic("whole", 1, 1), topic("empty", 1), topic("view", 1), topic("away", 1, -1)]
    client: Any = None
    assert topic_figures(client, topics) == {
        "whole": {"size_bytes": 11, "records": 10, "last_write_ms": 1001},
        "empty": {"size_bytes": 0, "records": 0, "last_write_ms": None},
        # It has no log of its own.
        "view": {"size_bytes": None, "records": 4, "last_write_ms": 1000},
        "away": {"size_bytes": None, "records": None, "last_write_ms": None},
    }
