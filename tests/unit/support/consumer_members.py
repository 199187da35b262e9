"""Members of a consumer group as a client library keeps them, for tests: they revoke, acknowledge and join again."""

from random import Random
from typing import Any

from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from tests.unit.support.group_coordinator import Harness

REBALANCE_MS = 2_000
REJOIN = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}

Partition = tuple[bytes, int]


class ModelMember:
    """`owned`: the partitions that the application reads. A stubborn member does not give up any."""

    def __init__(self, member_id: str, topics: set[str], *, regex: str = "", instance_id: str | None = None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.topics = topics
        self.regex = regex
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.assigned: set[Partition] = set()
        self.is_stubborn = False
        # Whether the next request has all that the member has, as after a response that was lost.
        self.sends_all = True

    def request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance_id
        )
        if self.epoch == 0 or self.sends_all:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = sorted(self.topics)
            request.subscribed_topic_regex = self.regex
            request.topic_partitions = self._owned_structs()
        return request

    def _owned_structs(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(index)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic.items()
        ]

    def heartbeat(self, broker: Harness, *, is_lost: bool = False) -> ErrorCode:
        """Send a heartbeat. The response may be lost; then the next request has all that the member has."""
        request = self.request()
        response: ConsumerGroupHeartbeatResponse = broker.call(request, 1)
        error = ErrorCode(response.error_code)
        assert self.epoch > 0 or error is not ErrorCode.FENCED_MEMBER_EPOCH, f"{self.member_id} cannot join again"
        if error is ErrorCode.NONE and request.topic_partitions is not None and self.epoch > 0:
            self._check_accepted(broker)
        self.sends_all = is_lost
        if is_lost:
            return error
        if error is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = {
                    (topic.topic_id, index)
                    for topic in response.assignment.topic_partitions
                    for index in topic.partitions
                }
                self._follow()
        elif error in REJOIN:
            self.epoch, self.owned, self.assigned = 0, set(), set()
        return error

    def _check_accepted(self, broker: Harness) -> None:
        """A member whose heartbeat is accepted has nothing that was given to others."""
        group = broker.shard().find(ConsumerGroup, "g")
        assert group is not None
        member = group.members[self.member_id]
        known = {
            (topic_id, index)
            for partitions in (member.assigned, member.pending_revocation)
            for topic_id, epochs in partitions.items()
            for index in epochs
        }
        if not self.is_stubborn:
            assert self.owned <= known, f"{self.member_id} has what it was not assigned: {self.owned - known}"

    def _follow(self) -> None:
        """Give up what is not assigned any more, and take the rest."""
        before = self.owned
        self.owned = self.owned | self.assigned if self.is_stubborn else set(self.assigned)
        self.sends_all = before != self.owned

    def leave(self, broker: Harness, *, for_a_moment: bool = False) -> None:
        epoch = -2 if for_a_moment else -1
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
        )
        broker.call(request, 1)
        self.epoch, self.owned, self.assigned = 0, set(), set()

    def commit(self, broker: Harness, partition: Partition, epoch: int) -> ErrorCode:
        """Commit an offset with an epoch, which may not be that of the member."""
        topic_id, index = partition
        rows = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1)]
        request = OffsetCommitRequest(
            group_id="g",
            member_id=self.member_id,
            generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(topic_id=topic_id, partitions=rows)],
        )
        response: Any = broker.call(request, 10)
        return ErrorCode(response.topics[0].partitions[0].error_code)


def settle(broker: Harness, members: list[ModelMember], random: Random | None = None, rounds: int = 40) -> None:
    """Let members send heartbeats until they have their targets, or for so many rounds."""
    for _ in range(rounds):
        for member in random.sample(members, len(members)) if random else members:
            member.heartbeat(broker)
        broker.loop.pass_ms(100)
        group = broker.shard().find(ConsumerGroup, "g")
        if group is not None and group.state_name == "Stable" and all(member.epoch > 0 for member in members):
            return
