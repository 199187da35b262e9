"""A second kind of group needs its own files and a row in the table of kinds: the requests for all kinds find it."""

from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.classic.records import ClassicGroupRecord
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.coordinator.runtime.coordinator_context import WRITES_PER_ITERATION
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from kbroker.metadata.features import TRANSACTION_VERSION, FinalizedFeatures
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.runtime.turns import TURN_ELEMENTS, yield_if_due
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.messages.k11_classic_groups import HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.k15_groups import DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from protocol.records.batch import build_batch
from tests.unit.coordinator.group.toy_groups import SESSION_MS, EpochRecord, Roster, RosterMember, Rosters
from tests.unit.support.group_coordinator import NODE, Harness
from tests.unit.support.internal_log import MemoryLog

KINDS = (*GROUP_KINDS, Rosters)


def new_broker(log: MemoryLog | None = None) -> Harness:
    broker = Harness(log, kinds=KINDS)
    broker.metadata.features = FinalizedFeatures(1, {TRANSACTION_VERSION: 2, "roster.version": 1})
    broker.create_topic("t", 2)
    broker.create_topic("u", 1)
    return broker


@pytest.fixture
def broker() -> Iterator[Harness]:
    harness = new_broker()
    yield harness
    harness.close()


def join(broker: Harness, name: str, topic: str = "t") -> int:
    return broker.run(broker.groups.write("g", Rosters, lambda rosters: rosters.join("g", name, topic)))


def members(broker: Harness) -> dict[str, str] | None:
    group = broker.shard().find(Roster, "g")
    return None if group is None else group.topics


def commit(broker: Harness, member: str, epoch: int, topic: str = "t", version: int = 9) -> ErrorCode:
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[OffsetCommitRequestPartition(committed_offset=5)])]
    request = OffsetCommitRequest(group_id="g", member_id=member, generation_id_or_member_epoch=epoch, topics=topics)
    return ErrorCode(broker.call(request, version).topics[0].partitions[0].error_code)


def fetch(broker: Harness, member: str, epoch: int, *, stable: bool) -> ErrorCode:
    group = OffsetFetchRequestGroup(group_id="g", member_id=member, member_epoch=epoch)
    request = OffsetFetchRequest(groups=[group], require_stable=stable)
    return ErrorCode(broker.call(request, 9).groups[0].error_code)


def test_groups_of_all_kinds_are_listed_and_described_by_their_kind(broker: Harness) -> None:
    join(broker, "m")
    broker.commit_offset("t", 0, OffsetAndMetadata(1), group_id="simple")

    def listed(states: list[str], types: list[str]) -> list[tuple[str, str, str]]:
        response = broker.call(ListGroupsRequest(states_filter=states, types_filter=types), 5)
        return sorted((group.group_id, group.group_type, group.group_state) for group in response.groups)

    assert listed([], []) == [("g", "roster", "Manned"), ("simple", "classic", "Empty")]
    assert listed([], ["Roster"]) == listed(["manned"], []) == [("g", "roster", "Manned")]
    assert listed(["empty"], ["roster"]) == listed([], ["consumer"]) == []
    group = broker.call(DescribeGroupsRequest(groups=["g"]), 6).groups[0]
    assert (group.error_code, group.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a classic group.")
    assert broker.call(DescribeGroupsRequest(groups=["g"]), 5).groups[0].group_state == "Dead"


def test_each_kind_decides_which_offsets_it_accepts(broker: Harness) -> None:
    join(broker, "m")
    epoch = join(broker, "n", "u")
    assert commit(broker, "m", epoch) is ErrorCode.NONE
    assert commit(broker, "m", epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(broker, "m", epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(broker, "n", epoch) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(broker, "other", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    for stable in (False, True):
        assert fetch(broker, "m", epoch, stable=stable) is ErrorCode.NONE
        assert fetch(broker, "m", epoch - 1, stable=stable) is ErrorCode.STALE_MEMBER_EPOCH
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)])
    assert broker.call(request, 0).topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_members_of_the_classic_protocol_are_refused(broker: Harness) -> None:
    join(broker, "m")
    protocols = [JoinGroupRequestProtocol(name="range")]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=1000, protocol_type="consumer", protocols=protocols)
    assert broker.call(request, 9).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.call(HeartbeatRequest(group_id="g", member_id="m"), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert members(broker) == {"m": "t"}


def test_a_kind_follows_topics_deadlines_and_deletion(broker: Harness) -> None:
    with pytest.raises(KafkaError):
        join(broker, "m", "unknown")
    join(broker, "m")
    join(broker, "n", "u")
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert broker.call(delete, 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    broker.run(broker.delete_topic("t"))
    broker.loop.run_ready()
    assert members(broker) == {"n": "u"}
    broker.loop.pass_ms(SESSION_MS + 1)
    assert members(broker) == {}
    assert broker.call(delete, 2).results[0].error_code == ErrorCode.NONE
    assert members(broker) is None


def test_a_member_whose_expiration_cannot_be_written_expires_later(broker: Harness) -> None:
    """Its deadline has passed, and nothing else would remove it."""
    join(broker, "m")
    broker.log.is_under_min_isr = True
    broker.loop.pass_ms(SESSION_MS + 1)
    assert members(broker) == {"m": "t"}
    broker.log.is_under_min_isr = False
    broker.loop.pass_ms(SESSION_MS + 1)
    assert members(broker) == {}


def test_a_group_is_loaded_from_the_records_of_its_kind(broker: Harness) -> None:
    """Its offsets may come first: compaction keeps the last record of each key only."""
    broker.commit_offset("t", 1, OffsetAndMetadata(3))
    join(broker, "m")
    assert commit(broker, "m", 1) is ErrorCode.NONE
    successor = new_broker(broker.log)
    assert members(successor) == {"m": "t"}
    assert join(successor, "n") == 2
    assert successor.committed_offsets()["t"].keys() == {0, 1}
    # The sessions have begun again.
    successor.loop.pass_ms(SESSION_MS + 1)
    successor.loop.pass_ms(SESSION_MS + 1)
    assert members(successor) == {}
    successor.close()


def test_a_thousand_members_join_at_once(broker: Harness) -> None:
    """Each join sees those before it, so that they need a few appends; with a commit each, they would be 1,000."""
    broker.log.held = True
    tp = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.runtime.partition_for("g"))
    before = len(broker.log.batches.get(tp, ()))
    operations = [partial(Rosters.join, group_id="g", name=f"m{number}", topic="t") for number in range(1000)]
    joins = [broker.groups.write("g", Rosters, operation) for operation in operations]
    broker.loop.run_ready()
    assert len(broker.log.batches[tp]) - before <= 1000 // WRITES_PER_ITERATION + 1
    assert not any(join.done() for join in joins)
    broker.log.commit()
    assert [join.result() for join in joins] == list(range(1, 1001))


def test_reads_of_a_group_and_lists_wait_for_what_they_have_seen(broker: Harness) -> None:
    broker.log.held = True
    joined = broker.groups.write("g", Rosters, lambda rosters: rosters.join("g", "m", "t"))
    read = broker.groups.write("g", Rosters, lambda rosters: rosters.read_epoch("g"))
    broker.loop.run_ready()
    listed = broker.start(ListGroupsRequest(), 5)
    assert [future.done() for future in (joined, read, listed)] == [False] * 3
    broker.log.commit()
    broker.loop.run_ready()
    assert (joined.result(), read.result()) == (1, 1)
    assert [group.group_state for group in listed.result().groups] == ["Manned"]


def test_a_list_omits_the_groups_of_a_partition_that_is_lost_meanwhile(broker: Harness) -> None:
    broker.log.held = True
    joined = broker.groups.write("g", Rosters, lambda rosters: rosters.join("g", "m", "t"))
    listed = broker.start(ListGroupsRequest(), 5)
    broker.lose_group()
    broker.loop.run_ready()
    assert listed.result().groups == []
    assert isinstance(joined.exception(), KafkaError)


def test_a_kind_needs_its_feature_but_its_records_are_replayed_without(broker: Harness) -> None:
    """Before the last upgrade, a broker that does not know the records may become the coordinator, and forget them."""
    join(broker, "m")
    successor = new_broker(broker.log)
    successor.metadata.features = FinalizedFeatures(2, {TRANSACTION_VERSION: 2})
    with pytest.raises(KafkaError) as raised:
        successor.groups.check_enabled(Rosters)
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert members(successor) == {"m": "t"}
    successor.close()


def test_deletion_waits_for_joins_in_flight_and_for_commits(broker: Harness) -> None:
    broker.log.held = True
    joined = broker.groups.write("g", Rosters, lambda rosters: rosters.join("g", "m", "t"))
    deleted = broker.start(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert not deleted.done()
    broker.log.commit()
    broker.loop.run_ready()
    assert joined.result() == 1
    assert deleted.result().results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    left = broker.groups.write("g", Rosters, lambda rosters: rosters.leave("g", "m"))
    deleted = broker.start(DeleteGroupsRequest(groups_names=["g"]), 2)
    # A member that joins now waits for the deletion, and is in a new group.
    rejoined = broker.groups.write("g", Rosters, lambda rosters: rosters.join("g", "n", "t"))
    broker.loop.run_ready()
    for _ in range(3):
        broker.log.commit()
        broker.loop.run_ready()
    assert (left.result(), deleted.result().results[0].error_code, rejoined.result()) == (2, 0, 1)
    assert members(broker) == {"n": "t"}


# Topics.


def test_only_groups_that_subscribe_to_changed_topics_are_told(
    broker: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, set[str]]] = []

    def on_topics_changed(kind: Rosters, group: Roster, topics: set[str]) -> CoordinatorResult[None]:
        told.append((group.group_id, topics))
        return CoordinatorResult(None)

    monkeypatch.setattr(Rosters, "on_topics_changed", on_topics_changed)
    for number, topic in enumerate("tttu"):
        operation = partial(Rosters.join, group_id=f"g{number}", name="m", topic=topic)
        broker.run(broker.groups.write(f"g{number}", Rosters, operation))
    broker.create_topic("unrelated", 1)
    broker.run(broker.elect(0, NODE))
    broker.loop.run_ready()
    assert told == []
    broker.run(broker.delete_topic("u"))
    broker.loop.run_ready()
    assert told == [("g3", {"u"})]


def test_a_change_of_topics_waits_for_the_operation_that_runs(broker: Harness) -> None:
    """So an operation that pauses does not work with topics of two images."""
    join(broker, "m")
    order: list[str] = []

    def slow(rosters: Rosters) -> CoordinatorResult[None]:
        for _ in range(2 * TURN_ELEMENTS):
            yield_if_due()
        order.append(f"end: {members(broker)}")
        return CoordinatorResult(None)

    operation = broker.groups.write("g", Rosters, slow)
    broker.run(broker.delete_topic("t"))
    broker.loop.run_ready()
    assert operation.done()
    assert (order, members(broker)) == (["end: {'m': 't'}"], {})


# Replay.


def compacted(records: Sequence[tuple[bytes, bytes | None]], cleaned_to: int) -> list[tuple[bytes, bytes | None]]:
    """Return what compaction leaves that has cleaned the log up to an offset, as if all of that were in one segment."""
    last = {key: offset for offset, (key, _) in enumerate(records[:cleaned_to])}
    return [record for offset, record in enumerate(records) if offset >= cleaned_to or last[record[0]] == offset]


def test_groups_that_change_their_kind_survive_any_compaction(broker: Harness) -> None:
    """Offsets before their group, tombstones without it, and a tombstone of the kind that the group had before."""
    offset, classic = OffsetRecord(OffsetKey("g", "t", 0), OffsetAndMetadata(5)), ClassicGroup("g")
    history: list[object] = [
        offset,
        classic.record(0, {}),
        ClassicGroupRecord("g", None),
        RosterMember("g", "m", "t"),
        EpochRecord("g", 1),
        RosterMember("g", "m", None),
        EpochRecord("g", None),
        classic.record(0, {}),
        ClassicGroupRecord("g", None),
        EpochRecord("g", 1),
        RosterMember("g", "n", "u"),
        ClassicGroupRecord("g", None),
        EpochRecord("g", 2),
    ]
    encoded = [broker.shard().encode(record) for record in history]
    tp = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.runtime.partition_for("g"))
    for cleaned_to in range(len(encoded) + 1):
        for tombstones in (True, False):
            log = MemoryLog()
            for key, value in compacted(encoded, cleaned_to):
                if tombstones or value is not None or (key, value) not in encoded[:cleaned_to]:
                    log.append_internal(tp, build_batch([(0, key, value, ())]))
            successor = new_broker(log)
            group = successor.shard().find(Roster, "g")
            assert group is not None
            assert (group.epoch, group.topics) == (2, {"n": "u"})
            assert successor.committed_offsets() == {"t": {0: OffsetAndMetadata(5)}}
            successor.close()


def test_a_group_whose_offsets_outlive_it_is_a_simple_group(broker: Harness) -> None:
    broker.commit_offset("t", 0, OffsetAndMetadata(5))
    shard = broker.shard()
    for record in (EpochRecord("g", 1), EpochRecord("g", None)):
        shard.replay(record, 9, -1)
    group = shard.groups["g"]
    assert (group.type_name, group.member_count) == ("classic", 0)
    assert join(broker, "m") == 1
    assert members(broker) == {"m": "t"}


def test_a_deadline_that_waits_while_its_group_becomes_one_of_another_kind_is_void(broker: Harness) -> None:
    join(broker, "m")
    broker.log.held = True
    shard, offset = broker.shard(), OffsetRecord(OffsetKey("g", "t", 0), OffsetAndMetadata(5))
    shard.context.post(lambda _: CoordinatorResult(None, [offset]), "g", LockMode.EXCLUSIVE)
    broker.loop.pass_ms(SESSION_MS)
    group = shard.groups["g"]
    shard.kind(ClassicGroups).put(ClassicGroup("g"))
    assert len(group.deadlines) == 0
    broker.log.held = False
    broker.log.commit()
    broker.loop.pass_ms(2 * SESSION_MS)
    assert shard.groups["g"].type_name == "classic"
