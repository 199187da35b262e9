"""A member of a share group (KIP-932): its heartbeats, and its share session with each leader.

It has no positions: the leaders say which records it has, and it says what has become of them, with a ShareAcknowledge
or with its next ShareFetch. A session ends with its connection, or with a request of the final epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kbroker.api.k78_share_fetch import BATCH_OPTIMIZED, RECORD_LIMIT
from kbroker.client.requests import GROUP
from kbroker.share.session import FINAL_EPOCH, INITIAL_EPOCH
from kbroker.simulation.checker.history import Outcome, TopicPartition
from kbroker.simulation.clients.cluster import COORDINATOR_MOVED, Cluster, CoordinatorClient
from kbroker.simulation.clients.connection import SimClientConnection
from kbroker.simulation.clients.records import read_batches
from kbroker.simulation.clients.workloads.share_rules import (
    Acknowledging,
    BrokenShareGroup,
    ShareDelivery,
    SharedRecords,
)
from protocol.errors import ErrorCode
from protocol.messages.k76_share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionData,
)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
REJOIN = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
# With these errors an acknowledgement had no effect.
NOT_ACKNOWLEDGED = (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST)
ALL_RECORDS = 1 << 30

# The type of the acknowledgement of each offset, by partition.
Types = Mapping[TopicPartition, Mapping[int, int]]


@dataclass(slots=True, eq=False)
class _Session:
    """`topic_ids`: as known when it was opened. It has partitions of these topics."""

    connection: SimClientConnection
    topic_ids: Mapping[str, bytes]
    epoch: int = INITIAL_EPOCH
    partitions: set[TopicPartition] = field(default_factory=set)


class ShareMember:
    """`leader_of`: returns the object of a broker that leads a partition for the group, None if there is none."""

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        group: str,
        member_id: str,
        topics: Sequence[str],
        records: SharedRecords,
        leader_of: Callable[[int, TopicPartition], object],
    ) -> None:
        self.member_id = member_id
        self._cluster = cluster
        self._random = random
        self._group = group
        self._topics = list(topics)
        self._records = records
        self._leader_of = leader_of
        self._epoch = JOIN_EPOCH
        self._is_answered = False
        self._assignment: Sequence[tuple[bytes, int]] = ()
        self._coordinator = CoordinatorClient(cluster, group, GROUP)
        self._sessions: dict[int, _Session] = {}

    def close(self) -> None:
        """End without a request, as a client does that dies."""
        for node in list(self._sessions):
            self._end_session(node)
        self._coordinator.disconnect()
        self._cluster.close()

    # The coordinator.

    async def heartbeat(self, epoch: int | None = None) -> None:
        """Send one heartbeat, and follow its response."""
        request = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self._epoch if epoch is None else epoch,
            subscribed_topic_names=None if self._is_answered and self._epoch != JOIN_EPOCH else self._topics,
        )
        # If the response is lost, and an assignment with it, the next request says everything and gets it again.
        self._is_answered = False
        try:
            coordinator = await self._coordinator.find()
            response = await coordinator.request(request, ShareGroupHeartbeatResponse)
        except OSError:
            self._coordinator.disconnect()
            return
        code = ErrorCode(response.error_code)
        self._is_answered = not code
        if code in REJOIN:
            self._epoch, self._assignment = JOIN_EPOCH, ()
        elif code in COORDINATOR_MOVED:
            self._coordinator.disconnect()
        elif not code:
            self._epoch = response.member_epoch
            if response.assignment is not None:
                topics = response.assignment.topic_partitions
                self._assignment = [(topic.topic_id, index) for topic in topics for index in topic.partitions]

    async def leave(self) -> None:
        await self.heartbeat(LEAVE_EPOCH)

    # Leaders.

    async def draw_leader(self) -> tuple[int, frozenset[TopicPartition]] | None:
        """Return one of the leaders with its assigned partitions, None if none is known."""
        leaders, names = self._cluster.leaders, self._cluster.topic_names
        if any((names.get(topic_id), index) not in leaders for topic_id, index in self._assignment):
            with suppress(OSError):
                await self._cluster.refresh_metadata(self._topics)
        current = set(self._cluster.topic_ids.values())
        assigned = [(names[topic_id], index) for topic_id, index in self._assignment if topic_id in current]
        nodes = sorted({leaders[tp].node for tp in assigned if tp in leaders})
        if not nodes:
            return None
        node = self._random.choice(nodes)
        return node, frozenset(tp for tp in assigned if tp in leaders and leaders[tp].node == node)

    async def _session(self, node: int) -> _Session:
        """Return the session with a leader, which may have to be opened. Raises OSError."""
        connection = await self._cluster.node(node)
        session = self._sessions.get(node)
        topic_ids = self._cluster.topic_ids
        if session is None or session.connection is not connection or session.topic_ids != topic_ids:
            self._end_session(node)
            session = self._sessions[node] = _Session(connection, dict(topic_ids))
        return session

    def _end_session(self, node: int) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            self._records.end_session(self.member_id, session.partitions)

    def has_session(self, node: int) -> bool:
        session = self._sessions.get(node)
        return session is not None and not session.connection.lost and session.epoch != INITIAL_EPOCH

    # Records.

    async def fetch(
        self, node: int, partitions: frozenset[TopicPartition], types: Types, max_wait_ms: int, *, is_greedy: bool
    ) -> dict[TopicPartition, dict[int, tuple[int, int]]]:
        """Acknowledge records, and acquire others: many if `is_greedy`. Returns (value, delivery count) of each.

        Raises BrokenShareGroup.
        """
        try:
            session = await self._session(node)
        except OSError:
            await self._cluster.backoff()
            return {}
        # A new session has nothing to acknowledge.
        types = {} if session.epoch == INITIAL_EPOCH else types
        added, forgotten = partitions - session.partitions, session.partitions - partitions
        max_records, is_strict = self._random.choice((1, 3, 10, 500)), self._random.random() < 0.5
        max_bytes = self._random.choice((1, 2_000, 1 << 20))
        if is_greedy:
            max_records, max_bytes = 500, 1 << 20
        request = ShareFetchRequest(
            group_id=self._group,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=self._random.choice((1, 10, 500)),
            share_acquire_mode=RECORD_LIMIT if is_strict else BATCH_OPTIMIZED,
            topics=self._topics_of(FetchTopic, FetchPartition, {tp: types.get(tp, {}) for tp in {*added, *types}}),
            forgotten_topics_data=[
                ForgottenTopic(topic_id=self._cluster.topic_ids[name], partitions=[index])
                for name, index in sorted(forgotten)
            ],
        )
        session.partitions |= partitions
        before = {tp: self._leader_of(node, tp) for tp in session.partitions}
        acknowledging, begun_s = self._begin(types), self._cluster.loop.time()
        try:
            response = await session.connection.request(request, ShareFetchResponse)
        except OSError:
            self._records.lose_fetch(session.partitions)
            self._end(acknowledging, {})
            self._end_session(node)
            return {}
        rows = self._rows(response)
        if not self._follow_session(node, session, response.error_code):
            self._end(acknowledging, dict.fromkeys(rows or types, int(ErrorCode.INVALID_RECORD_STATE)))
            return {}
        session.partitions = set(partitions)
        self._end(acknowledging, {tp: row.acknowledge_error_code for tp, row in rows.items()})
        received: dict[TopicPartition, dict[int, tuple[int, int]]] = {}
        for tp, row in rows.items():
            if row.error_code:
                self._cluster.forget_leader(tp)
            if row.acquired_records:
                leader = self._leader_of(node, tp)
                received[tp] = found = _acquired(tp, row)
                sure = leader if leader is before.get(tp) else None
                now_s = self._cluster.loop.time()
                self._records.deliver(ShareDelivery(self.member_id, tp, found, begun_s, now_s, sure))
        if is_strict and sum(map(len, received.values())) > max_records:
            raise BrokenShareGroup(f"{self.member_id} asked for {max_records} records, and got {received}")
        return received

    async def acknowledge(self, node: int, types: Types, *, renews: bool = False, closes: bool = False) -> None:
        """Send a ShareAcknowledge in the session with a leader, if there is one."""
        if not self.has_session(node):
            return
        session = self._sessions[node]
        request = ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self.member_id,
            share_session_epoch=FINAL_EPOCH if closes else session.epoch,
            is_renew_ack=renews,
            topics=self._topics_of(AcknowledgeTopic, AcknowledgePartition, types),
        )
        acknowledging = self._begin(types)
        try:
            response = await session.connection.request(request, ShareAcknowledgeResponse)
        except OSError:
            self._end(acknowledging, {})
            self._end_session(node)
            return
        if self._follow_session(node, session, response.error_code):
            names = self._cluster.topic_names
            self._end(
                acknowledging,
                {
                    (names[topic.topic_id], row.partition_index): row.error_code
                    for topic in response.responses
                    for row in topic.partitions
                },
            )
        else:
            self._end(acknowledging, dict.fromkeys(types, int(ErrorCode.INVALID_RECORD_STATE)))
        if closes:
            self._end_session(node)

    def _follow_session(self, node: int, session: _Session, code: int) -> bool:
        """Return whether the request was accepted as a whole. Otherwise a new session is opened later."""
        if code:
            self._end_session(node)
            return False
        session.epoch += 1
        return True

    def _begin(self, types: Types) -> list[Acknowledging]:
        now_s = self._cluster.loop.time()
        return [self._records.begin(self.member_id, tp, offsets, now_s) for tp, offsets in types.items()]

    def _end(self, acknowledging: Sequence[Acknowledging], codes: Mapping[TopicPartition, int]) -> None:
        for each in acknowledging:
            code = codes.get(each.tp)
            refused = Outcome.FAILED if code in NOT_ACKNOWLEDGED else Outcome.UNKNOWN
            self._records.end(each, Outcome.OK if code == 0 else refused, self._cluster.loop.time())

    def _topics_of(self, topic: type, partition: type, types: Types) -> list[Any]:
        """Return the rows of a request, one for each partition."""
        return [
            topic(
                topic_id=self._cluster.topic_ids[name],
                partitions=[
                    partition(partition_index=index, acknowledgement_batches=_batches(types[name, index], self._random))
                ],
            )
            for name, index in sorted(types)
        ]

    def _rows(self, response: ShareFetchResponse) -> dict[TopicPartition, SharePartitionData]:
        names = self._cluster.topic_names
        return {
            (names[topic.topic_id], row.partition_index): row
            for topic in response.responses
            for row in topic.partitions
        }


def _acquired(tp: TopicPartition, row: SharePartitionData) -> dict[int, tuple[int, int]]:
    """Return (value, delivery count) of each acquired record. Raises BrokenShareGroup if one is not in the response."""
    values = dict(read_batches(row.records or b"", 0, (), ALL_RECORDS).reads)
    found: dict[int, tuple[int, int]] = {}
    for acquired in row.acquired_records:
        for offset in range(acquired.first_offset, acquired.last_offset + 1):
            if offset not in values or offset in found:
                raise BrokenShareGroup(f"{tp}@{offset} is acquired, and the response has {sorted(values)}")
            found[offset] = values[offset], acquired.delivery_count
    return found


def _batches(types: Mapping[int, int], random: Random) -> list[AcknowledgementBatch]:
    """Return adjacent offsets together, sometimes with one type for all of them."""
    batches: list[AcknowledgementBatch] = []
    for offset, kind in sorted(types.items()):
        last = batches[-1] if batches else None
        if last is None or last.last_offset + 1 != offset:
            batches.append(AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[kind]))
        else:
            last.last_offset = offset
            last.acknowledge_types.append(kind)
    for batch in batches:
        if len(set(batch.acknowledge_types)) == 1 and random.random() < 0.5:
            batch.acknowledge_types = batch.acknowledge_types[:1]
    return batches
