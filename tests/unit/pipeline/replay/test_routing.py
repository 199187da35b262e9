"""Target partitions."""

import os

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.routing import Routing, assign_to_tasks, murmur2, target_names


def test_records_keep_their_partition_or_are_partitioned_by_key():
    kept = Routing({"a": "x", "b": "y"}, {"x": 3, "y": 2})
    assert kept.targets == [*(TopicPartition("x", n) for n in range(3)), *(TopicPartition("y", n) for n in range(2))]
    assert [*kept.targets_of(TopicPartition("b", 1))] == [4]
    kept.check([TopicPartition("a", 2), TopicPartition("b", 1)])
    with pytest.raises(PipelineError, match="topic y has 2 partitions, but b-2 has records to replay"):
        kept.check([TopicPartition("b", 2)])
    keyed = Routing({"a": "x"}, {"x": 3}, by_key=True)
    assert [*keyed.targets_of(TopicPartition("a", 7))] == [0, 1, 2]


def test_source_partitions_that_share_a_target_are_merged():
    kept = Routing({"a": "x", "b": "y"}, {"x": 3, "y": 2})
    assert not kept.merges([TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)])
    merged = Routing({"a": "all", "b": "all"}, {"all": 2})
    assert merged.merges([TopicPartition("a", 1), TopicPartition("b", 1)])
    assert not merged.merges([TopicPartition("a", 0), TopicPartition("b", 1)])
    keyed = Routing({"a": "x"}, {"x": 3}, by_key=True)
    assert keyed.merges([TopicPartition("a", 0), TopicPartition("a", 1)])
    assert not keyed.merges([TopicPartition("a", 0)])


def test_a_source_partition_beyond_its_target_topic_has_no_target():
    routing = Routing({"a": "x", "b": "y"}, {"x": 1, "y": 2})
    assert [list(routing.targets_of(TopicPartition("a", number))) for number in (0, 1, 9)] == [[0], [], []]
    assert [list(routing.targets_of(TopicPartition("b", number))) for number in (0, 1, 9)] == [[1], [2], []]


def test_target_names():
    assert target_names(["a", "b"], "all", None) == {"a": "all", "b": "all"}
    assert target_names(["a"], None, "copy-") == {"a": "copy-a"}
    assert target_names(["a"], None, None) == {"a": "a"}


def test_targets_are_assigned_to_tasks_by_record_count():
    assert assign_to_tasks({0: 10, 1: 1, 2: 9, 3: 1}, 2) == {0: 0, 2: 1, 1: 1, 3: 0}
    assert set(assign_to_tasks(dict.fromkeys(range(7), 5), 3).values()) == {0, 1, 2}


def test_murmur2_equals_kafka_pythons():
    partitioner = pytest.importorskip("kafka.partitioner.default")
    for size in range(40):
        key = os.urandom(size)
        assert murmur2(key) == partitioner.murmur2(key) & 0xFFFFFFFF
