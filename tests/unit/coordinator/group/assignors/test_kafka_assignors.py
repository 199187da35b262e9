"""Comparison with the assignors and topic hashes of Apache Kafka 4.4.0, as record_kafka.py has recorded them."""

from itertools import pairwise
from pathlib import Path

import pytest

from kbroker.coordinator.group.assignors.server_assignors import SERVER_ASSIGNORS
from kbroker.coordinator.group.modern.subscribed_topics import group_hash, topic_hash
from tests.unit.coordinator.group.assignors.groups import from_line, moves, targets_from_line, topic_id

HERE = Path(__file__).parent


def recorded(name: str) -> list[tuple[str, str]]:
    lines = (HERE / name).read_text().splitlines()
    return list(pairwise(lines))[::2]


@pytest.mark.parametrize(("assignor", "count"), [("range", 144), ("uniform", 144)])
def test_the_targets_are_those_of_kafka(assignor: str, count: int) -> None:
    """They are equal, except those of `uniform` with equal subscriptions: there, each member has as many partitions as
    with Kafka, and as few move. Which ones depends on the order of a hash table of Java's.
    """
    compared = 0
    for line, result in recorded("kafka-assignments.txt"):
        group = from_line(line)
        if group.assignor == assignor:
            expected = targets_from_line(result)
            targets = SERVER_ASSIGNORS[assignor](group.members, group.counts)
            is_homogeneous = len({member.subscribed for member in group.members.values()}) == 1
            if assignor == "uniform" and is_homogeneous:
                assert sizes(targets) == sizes(expected), line
                assert moves(group.members, targets) <= moves(group.members, expected), line
            else:
                assert targets == expected, line
            compared += 1
    assert compared == count


def sizes(targets):
    return {name: sum(map(len, target.values())) for name, target in targets.items()}


def test_the_hashes_are_those_of_kafka() -> None:
    for line, result in recorded("kafka-hashes.txt"):
        hashes = {}
        for index, topic in enumerate(line.split("|")[1:]):
            name, racks = topic.split(";")
            of_partitions = [partition.split(".") if partition else [] for partition in racks.split(",")]
            hashes[name] = topic_hash(topic_id(index), name, of_partitions)
        signed = {name: value - (value >> 63 << 64) for name, value in hashes.items()}
        texts = ", ".join(f"{name}={signed[name]}" for name in sorted(signed))
        assert f"{{{texts}}} {group_hash(hashes)}" == result


def test_a_group_without_topics_has_no_hash() -> None:
    assert group_hash({}) == 0
