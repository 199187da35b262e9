"""The groups of a coordinator are compared with the replay of its log."""

import pytest

from kbroker.common import TopicPartition
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.records import OffsetAndMetadata
from kbroker.coordinator.runtime.operation import LockMode
from kbroker.metadata.features import FinalizedFeatures
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.simulation.invariants.coordinators import REPLAYED_FIELDS, ReplayedGroups
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from tests.unit.coordinator.group.toy_groups import Roster, Rosters
from tests.unit.support.group_coordinator import Harness

KINDS = (*GROUP_KINDS, Rosters)


def test_what_the_log_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REPLAYED_FIELDS, "roster", ("epoch", "topics"))
    broker = Harness(kinds=KINDS)
    broker.metadata.features = FinalizedFeatures(1, {"roster.version": 1})
    broker.create_topic("t", 1)
    broker.commit_offset("t", 0, OffsetAndMetadata(5))
    broker.run(broker.groups.write("g", Rosters, lambda rosters: rosters.join("g", "m", "t")))
    context = broker.groups.runtime.context("g")
    log = ReplayedGroups(context, KINDS)
    tp = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.runtime.partition_for("g"))
    data = b"".join(broker.log.batches[tp])
    for pos, header in iter_headers(data):
        log.add(header, iter_records(body_of(data, pos, header.size), header.count, header.base_timestamp))
    assert log.group_differences(context.shard) == ""
    group = context.shard.find(Roster, "g")
    assert group is not None
    group.epoch = 2
    assert log.group_differences(context.shard) == "g: (2, {'m': 't'}) instead of (1, {'m': 't'})"
    broker.close()


def test_each_kind_that_replays_before_the_commit_is_compared() -> None:
    ordered = [kind for kind in GROUP_KINDS if kind.mode is LockMode.ORDERED]
    assert {kind.type_name for kind in ordered} == REPLAYED_FIELDS.keys()
    broker = Harness()
    for kind in ordered:
        group = broker.shard().kind(kind).new_group("g")
        assert all(hasattr(group, name) for name in REPLAYED_FIELDS[kind.type_name])
    broker.close()
