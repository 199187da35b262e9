"""A member of a classic group: assignments, and when it joins again."""

from collections.abc import Iterator

import pytest

from kbroker.client import group_member, retries
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_member import BlockingMember, range_assignment
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataResponsePartition, MetadataResponseTopic
from protocol.messages.k08_offset_commits import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from protocol.messages.k11_classic_groups import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.unit.support.socket_broker import SocketBroker, metadata


def test_partitions_are_assigned_in_ranges_as_kafkas_range_assignor_does() -> None:
    subscriptions = {"b": ["t", "u"], "a": ["t"]}
    assert range_assignment(subscriptions, {"t": 3, "u": 2}) == {
        "a": [TopicPartition("t", 0), TopicPartition("t", 1)],
        "b": [TopicPartition("t", 2), TopicPartition("u", 0), TopicPartition("u", 1)],
    }


class FakeCoordinator:
    """A group `g` whose only member leads it. `errors`: of the next heartbeat and commit."""

    def __init__(self) -> None:
        self.errors: list[int] = []
        # As on a full disk.
        self.refuses_members = False
        self.joins: list[JoinGroupRequest] = []
        self.broker = SocketBroker(
            {
                ApiKey.JOIN_GROUP: self._join,
                ApiKey.SYNC_GROUP: self._sync,
                ApiKey.HEARTBEAT: lambda request: HeartbeatResponse(error_code=self._error()),
                ApiKey.OFFSET_COMMIT: lambda request: OffsetCommitResponse(
                    topics=[
                        OffsetCommitResponseTopic(
                            name="t",
                            partitions=[OffsetCommitResponsePartition(partition_index=0, error_code=self._error())],
                        )
                    ]
                ),
            }
        )
        here = Coordinator(key="g", node_id=1, host="127.0.0.1", port=self.broker.port)
        self.broker.handlers[ApiKey.FIND_COORDINATOR] = lambda request: FindCoordinatorResponse(coordinators=[here])
        rows = [MetadataResponsePartition(partition_index=index, leader_id=1) for index in range(2)]
        self.broker.handlers[ApiKey.METADATA] = metadata(
            self.broker, topics=[MetadataResponseTopic(name="t", partitions=rows)]
        )

    def _error(self) -> int:
        return self.errors.pop(0) if self.errors else 0

    def _join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        self.joins.append(request)
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m", protocol_name="")
        if self.refuses_members:
            return JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        member = JoinGroupResponseMember(member_id="m", metadata=request.protocols[0].metadata)
        return JoinGroupResponse(
            generation_id=len(self.joins), protocol_name="range", leader="m", member_id="m", members=[member]
        )

    def _sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        return SyncGroupResponse(assignment=request.assignments[0].assignment)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BlockingMember, FakeCoordinator]]:
    monkeypatch.setattr(group_member, "HEARTBEAT_EVERY_S", 0.0)
    coordinator = FakeCoordinator()
    with ClusterClient([coordinator.broker.address], client_id="test", timeout_s=10.0) as cluster:
        yield BlockingMember(cluster, "g", ["t"]), coordinator
    coordinator.broker.close()


def test_the_first_member_gets_its_id_and_assigns_all_partitions(group: tuple[BlockingMember, FakeCoordinator]) -> None:
    member, coordinator = group
    assert member.join() == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert (member.member_id, member.generation) == ("m", 2)
    assert [request.member_id for request in coordinator.joins] == ["", "m"]
    assert member.heartbeat()
    assert member.commit({TopicPartition("t", 0): 5})


def test_a_coordinator_that_refuses_each_member_is_not_asked_in_a_busy_loop(
    group: tuple[BlockingMember, FakeCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    member, coordinator = group
    coordinator.refuses_members = True
    monkeypatch.setattr(group_member, "JOIN_TIMEOUT_S", 0.3)
    monkeypatch.setattr(retries, "SILENT_FOR_S", 0.1)
    waits: list[str] = []
    member._cluster.on_wait = waits.append
    with pytest.raises(BrokerError, match="group g: UNKNOWN_MEMBER_ID"):
        member.join()
    assert "group g: UNKNOWN_MEMBER_ID" in waits
    assert len(coordinator.joins) <= 12


@pytest.mark.parametrize(
    ("code", "member_id"),
    [(ErrorCode.REBALANCE_IN_PROGRESS, "m"), (ErrorCode.ILLEGAL_GENERATION, "m"), (ErrorCode.UNKNOWN_MEMBER_ID, "")],
)
def test_a_member_joins_again_when_its_generation_has_ended(
    group: tuple[BlockingMember, FakeCoordinator], code: ErrorCode, member_id: str
) -> None:
    member, coordinator = group
    member.join()
    coordinator.errors = [code]
    assert not member.heartbeat()
    assert member.member_id == member_id
    coordinator.errors = [code]
    assert not member.commit({TopicPartition("t", 0): 5})
    assert len(member.join()) == 2
    coordinator.errors = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(BrokerError, match="group g: GROUP_AUTHORIZATION_FAILED"):
        member.heartbeat()
