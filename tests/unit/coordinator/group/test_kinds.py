"""A second kind of group needs its own files and a row in the table of kinds: the requests for all kinds find it."""

from collections.abc import Iterator

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.records import OffsetAndMetadata
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
from tests.unit.coordinator.group.toy_groups import SESSION_MS, Roster, Rosters
from tests.unit.support.group_coordinator import Harness
from tests.unit.support.internal_log import MemoryLog

KINDS = (*GROUP_KINDS, Rosters)


def new_broker(log: MemoryLog | None = None) -> Harness:
    broker = Harness(log, kinds=KINDS)
    broker.create_topic("t", 2)
    broker.create_topic("u", 1)
    return broker


@pytest.fixture
def broker() -> Iterator[Harness]:
    harness = new_broker()
    yield harness
    harness.close()


def join(broker: Harness, name: str, topic: str = "t") -> int:
    return broker.run(broker.groups.write("g", lambda shard: shard.kind(Rosters).join("g", name, topic)))


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
