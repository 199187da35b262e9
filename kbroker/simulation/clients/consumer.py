"""A consumer of assigned partitions.

- One poll sends one Fetch to each leader, with or without a fetch session.
- An out-of-range position is reset to the log start offset. A position whose last record the leader has lost
  (KIP-320) is reset to the offset at which the logs diverge. Both are recorded as an Assign with the reason "reset".
- A batch with a wrong CRC is never skipped: `poll` raises CorruptRecordError and the position does not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from kbroker.simulation.checker.history import Assign, History, Outcome, Poll, Read, TopicPartition
from kbroker.simulation.clients.cluster import NO_EPOCH, NO_ID, Cluster, UnavailableError
from kbroker.simulation.clients.group_offsets import EARLIEST, epoch_end_offset, list_offset
from kbroker.simulation.clients.records import CorruptRecordError, read_batches
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.fast.fetch import FIRST_TOPIC_ID_VERSION
from protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

FIRST_WITH_LAST_EPOCH = 12
# After an empty poll with a shorter wait than this, the consumer backs off.
SHORT_WAIT_MS = 10
# Errors of a partition that a metadata refresh does not help against.
NO_REPLICA = -1
LEADER_NOT_AT_FAULT = frozenset(
    {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CORRUPT_MESSAGE}
)


@dataclass(slots=True)
class ConsumerConfig:
    """How a consumer fetches. Sizes are in bytes.

    `max_records`: at most this many records per partition and poll; the remaining ones are fetched again.
    `sends_last_fetched_epoch`: sends the last fetched epoch, so that the broker detects a diverging log (KIP-595).
    `rack`: the leader may send the consumer to a replica in this rack (KIP-392).
    """

    committed_only: bool = False
    sessions: bool = True
    max_bytes: int = 1 << 20
    partition_max_bytes: int = 1 << 18
    min_bytes: int = 1
    max_wait_ms: int = 100
    max_records: int = 500
    sends_last_fetched_epoch: bool = False
    rack: str = ""

    @classmethod
    def draw(cls, random: Random, *, committed_only: bool = False, rack: str = "") -> ConsumerConfig:
        """Draw a configuration."""
        return cls(
            committed_only=committed_only,
            sessions=random.random() < 0.8,
            max_bytes=random.choice((1, 500, 5_000, 100_000, 1 << 20)),
            partition_max_bytes=random.choice((1, 300, 3_000, 50_000, 1 << 18)),
            min_bytes=random.choice((0, 1, 1, 1_000, 20_000)),
            max_wait_ms=random.choice((0, 10, 100, 500)),
            max_records=random.choice((1, 3, 20, 500)),
            sends_last_fetched_epoch=random.random() < 0.5,
            rack=rack,
        )


@dataclass(slots=True)
class Position:
    """A fetch position.

    `epoch` is the leader epoch of the record before it. `validated_epoch` is the current leader epoch for which the
    position was validated (KIP-320). Both are -1 if unknown. `out_of_range`: reset to the log start offset.
    `preferred_replica`: the node to fetch from instead of the leader, if any.
    """

    offset: int
    epoch: int = NO_EPOCH
    validated_epoch: int = NO_EPOCH
    out_of_range: bool = False
    preferred_replica: int = NO_REPLICA


class Consumer:
    """`process` is the consumer's name in the history."""

    def __init__(
        self, cluster: Cluster, history: History, process: str, random: Random, config: ConsumerConfig | None = None
    ) -> None:
        self.config = config or ConsumerConfig()
        self.cluster = cluster
        self.positions: dict[TopicPartition, Position] = {}
        # The transaction in which the application processes the records.
        self.transaction: int | None = None
        self._history = history
        self._process = process
        self._random = random
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._diverging_positions: dict[TopicPartition, Position] = {}
        self._corrupt: CorruptRecordError | None = None

    def assign(self, positions: Mapping[TopicPartition, int | Position], reason: str = "assign") -> None:
        """Replace the assigned partitions and their positions."""
        self.positions = {tp: replace(at) if isinstance(at, Position) else Position(at) for tp, at in positions.items()}
        self._history.record(self._process, Assign(self._offsets(), reason))

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = Position(offset)
        self._history.record(self._process, Assign(self._offsets(), "seek"))

    def committable(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the positions after the records returned by `poll`, as (offset, leader epoch or -1)."""
        return {tp: (position.offset, position.epoch) for tp, position in self.positions.items()}

    def close(self) -> None:
        self.cluster.close()

    async def poll(self) -> list[Read]:
        """Return the next records, none if there are none yet or no broker is reachable. Raises CorruptRecordError."""
        try:
            await self._prepare_positions()
        except OSError:
            await self.cluster.backoff()
            return []
        if not self.positions:
            await self.cluster.backoff()
            return []
        poll = Poll(committed_only=self.config.committed_only, transaction=self.transaction)
        operation = self._history.begin(self._process, poll)
        try:
            failures = await self._fetch(poll)
        except BaseException as error:
            self._history.end(operation, Outcome.FAILED, type(error).__name__)
            raise
        poll.positions = self._offsets()
        outcome = Outcome.OK if poll.reads or not failures else Outcome.FAILED
        self._history.end(operation, outcome, ", ".join(failures))
        moved, self._diverging_positions = self._diverging_positions, {}
        if moved:
            self._reset_positions(moved)
        corrupt, self._corrupt = self._corrupt, None
        if poll.reads:
            return poll.reads
        if corrupt is not None:
            raise corrupt
        if failures or self.config.max_wait_ms < SHORT_WAIT_MS:
            await self.cluster.backoff()
        return []

    def _offsets(self) -> dict[TopicPartition, int]:
        return {tp: position.offset for tp, position in self.positions.items()}

    # Preparing to fetch: find leaders and validate positions.

    async def _prepare_positions(self) -> None:
        """Find and connect to the leaders, then validate the positions. Raises OSError if no leader is reachable."""
        cluster = self.cluster
        unknown = [tp[0] for tp in self.positions if tp not in cluster.leaders]
        if unknown:
            await cluster.refresh_metadata(list(dict.fromkeys(unknown)))
        await self._connect_to_leaders()
        moved = {}
        for tp, position in list(self.positions.items()):
            leader = cluster.leaders.get(tp)
            if leader is None:
                continue
            if NO_EPOCH < leader.epoch < position.epoch:
                # The metadata of a broker that was cut off names a former leader. The Java client ignores it, too.
                cluster.forget_leader(tp)
                continue
            try:
                new = await self._validated_position(tp, position, leader.epoch)
            except UnavailableError:
                # Only this partition cannot be fetched now.
                continue
            if new is None:
                position.validated_epoch = leader.epoch
            else:
                moved[tp] = new
        if moved:
            self._reset_positions(moved)

    async def _connect_to_leaders(self) -> None:
        """Connect to all known leaders. Raises OSError if none is reachable."""
        nodes = dict.fromkeys(self.cluster.leaders[tp].node for tp in self.positions if self._has_leader(tp))
        missing: OSError | None = None
        for node in nodes:
            try:
                await self.cluster.node(node)
            except OSError as error:
                missing = error
        if missing is not None and not any(map(self.cluster.open_leader_connection, self.positions)):
            raise missing

    def _has_leader(self, tp: TopicPartition) -> bool:
        return tp in self.cluster.leaders

    async def _validated_position(self, tp: TopicPartition, position: Position, leader_epoch: int) -> Position | None:
        """Return the position to reset to, or None if the leader's log contains the position."""
        if not position.out_of_range:
            if leader_epoch == position.validated_epoch or NO_EPOCH in (position.epoch, leader_epoch):
                return None
            epoch, end_offset = await epoch_end_offset(self.cluster, tp, leader_epoch, position.epoch)
            if end_offset >= position.offset and epoch == position.epoch:
                return None
            if end_offset >= 0:
                return _diverging_position(position, epoch, end_offset, leader_epoch)
        offset, _ = await list_offset(self.cluster, tp, EARLIEST)
        return Position(offset, NO_EPOCH, leader_epoch)

    def _reset_positions(self, moved: Mapping[TopicPartition, Position]) -> None:
        # A partition may have been unassigned in the meantime.
        self.positions.update({tp: at for tp, at in moved.items() if tp in self.positions})
        self._history.record(self._process, Assign(self._offsets(), "reset"))

    # Fetching.

    async def _fetch(self, poll: Poll) -> list[str]:
        """Fetch once from each leader, or preferred replica. Adds the records to `poll` and returns the failures."""
        by_node: dict[int, dict[TopicPartition, Position]] = {}
        failures = []
        for tp, position in self.positions.items():
            leader = self.cluster.leaders.get(tp)
            if leader is None:
                failures.append(f"no leader of {tp[0]}-{tp[1]}")
            else:
                replica = position.preferred_replica
                by_node.setdefault(leader.node if replica == NO_REPLICA else replica, {})[tp] = position
        if len(by_node) == 1:
            ((node, positions),) = by_node.items()
            responses = [await self._fetch_from(node, positions)]
        else:
            responses = await asyncio.gather(
                *(self._fetch_from(node, positions) for node, positions in by_node.items())
            )
        for response in responses:
            if isinstance(response, OSError):
                failures.append(str(response) if isinstance(response, UnavailableError) else type(response).__name__)
                continue
            for tp, data in response.items():
                failures += self._handle_partition(poll, tp, data)
        return failures

    async def _fetch_from(
        self, node: int, positions: dict[TopicPartition, Position]
    ) -> dict[TopicPartition, PartitionData] | OSError:
        session = self._sessions.get(node)
        if session is None:
            session = self._sessions[node] = FetchSessionHandler(self.config.sessions)
        try:
            connection = await self.cluster.node(node)
            version = connection.version(ApiKey.FETCH)
            request = self._request()
            session.fill_request(request, {tp: self._partition_fetch(tp, at, version) for tp, at in positions.items()})
            timeout_s = self.cluster.timeout_s + self.config.max_wait_ms / 1000
            response = await connection.request(request, FetchResponse, version=version, timeout_s=timeout_s)
        except OSError as error:
            session.handle_error()
            for position in positions.values():
                position.preferred_replica = NO_REPLICA
            return error
        except BaseException:
            session.handle_error()
            raise
        session.handle_response(response)
        if response.error_code:
            return UnavailableError(ErrorCode(response.error_code).name)
        by_id = version >= FIRST_TOPIC_ID_VERSION
        return {
            (self.cluster.topic_names.get(topic.topic_id, "") if by_id else topic.topic, data.partition_index): data
            for topic in response.responses
            for data in topic.partitions
        }

    def _request(self) -> FetchRequest:
        config = self.config
        return FetchRequest(
            max_wait_ms=config.max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.max_bytes,
            isolation_level=int(config.committed_only),
            rack_id=config.rack,
        )

    def _partition_fetch(self, tp: TopicPartition, position: Position, version: int) -> PartitionFetch:
        topic_id = self.cluster.topic_ids.get(tp[0], NO_ID) if version >= FIRST_TOPIC_ID_VERSION else NO_ID
        last_epoch = (
            position.epoch if self.config.sends_last_fetched_epoch and version >= FIRST_WITH_LAST_EPOCH else NO_EPOCH
        )
        leader_epoch = self.cluster.leaders[tp].epoch
        return PartitionFetch(topic_id, position.offset, leader_epoch, last_epoch, self.config.partition_max_bytes)

    def _handle_partition(self, poll: Poll, tp: TopicPartition, data: PartitionData) -> list[str]:
        """Add one partition's records to the poll. Returns the failures."""
        position = self.positions.get(tp)
        if position is None:
            return []
        if data.error_code and position.preferred_replica != NO_REPLICA:
            # As in the Java client: the leader decides, also about an offset that is out of range.
            position.preferred_replica = NO_REPLICA
            return [ErrorCode(data.error_code).name]
        if data.error_code:
            code = ErrorCode(data.error_code)
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                position.out_of_range = True
            if code not in LEADER_NOT_AT_FAULT:
                self.cluster.forget_leader(tp)
            return [code.name]
        if data.preferred_read_replica != NO_REPLICA:
            position.preferred_replica = data.preferred_read_replica
            return []
        if data.diverging_epoch.end_offset >= 0:
            epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
            self._diverging_positions[tp] = _diverging_position(position, epoch, end_offset, position.validated_epoch)
            return ["diverging epoch"]
        if data.records:
            aborted = [
                (transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()
            ]
            try:
                fetched = read_batches(data.records, position.offset, aborted, self.config.max_records)
            except CorruptRecordError as error:
                self._corrupt = error
                error.tp = tp
                return [str(error)]
            poll.reads += [Read(tp, offset, value) for offset, value in fetched.reads]
            position.offset = fetched.next_offset
            if fetched.epoch != NO_EPOCH:
                position.epoch = fetched.epoch
        return []


def _diverging_position(position: Position, epoch: int, end_offset: int, validated_epoch: int) -> Position:
    """Return the position at which to go on after a replica has answered with an older `epoch`.

    A replica that was added after a compaction does not know an epoch whose records were all removed. That contradicts
    no position up to `end_offset`. Other replicas know it, and would find that `epoch` ends before the position.
    """
    if end_offset >= position.offset:
        return Position(position.offset, NO_EPOCH, validated_epoch)
    return Position(end_offset, epoch, validated_epoch)


# The consumer's side of a fetch session (KIP-227): it sends only changes of the session's partitions.

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
NO_SESSION = 0


class PartitionFetch(NamedTuple):
    """The fetch parameters of one partition. An epoch is -1 if it is not sent."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int
    max_bytes: int


class FetchSessionHandler:
    """The fetch session with one node. `used`: whether this client uses fetch sessions."""

    def __init__(self, used: bool) -> None:
        self._used = used
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH if used else FINAL_EPOCH
        self._session_partitions: dict[TopicPartition, PartitionFetch] = {}
        self._requested_partitions: dict[TopicPartition, PartitionFetch] = {}

    @property
    def is_incremental(self) -> bool:
        return self._id != NO_SESSION and self._epoch > INITIAL_EPOCH

    def fill_request(self, request: FetchRequest, partitions: dict[TopicPartition, PartitionFetch]) -> None:
        """Set the request's session fields and the partitions that changed since the session's last request."""
        self._requested_partitions = partitions
        request.session_id, request.session_epoch = self._id, self._epoch
        changed = partitions
        if self.is_incremental:
            changed = {
                tp: partition for tp, partition in partitions.items() if self._session_partitions.get(tp) != partition
            }
            # A recreated topic has another id: the partitions of the old id are forgotten.
            gone = {
                tp: partition
                for tp, partition in self._session_partitions.items()
                if tp not in partitions or partitions[tp].topic_id != partition.topic_id
            }
            request.forgotten_topics_data = _forgotten(gone)
        request.topics = _topics(changed)

    def handle_response(self, response: FetchResponse) -> None:
        """Update the session from a response."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = NO_SESSION
            self.handle_error()
        elif not self._used or response.session_id == NO_SESSION:
            self._id = NO_SESSION
            self._epoch = INITIAL_EPOCH if self._used else FINAL_EPOCH
        else:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
            self._id = response.session_id
            self._session_partitions = self._requested_partitions

    def handle_error(self) -> None:
        """Make the next request a full one, which closes the session: its state on the broker is unknown."""
        self._epoch = INITIAL_EPOCH if self._used else FINAL_EPOCH


def _topics(partitions: dict[TopicPartition, PartitionFetch]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for (name, index), partition in partitions.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic=name, topic_id=partition.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=partition.leader_epoch,
                fetch_offset=partition.offset,
                last_fetched_epoch=partition.last_epoch,
                partition_max_bytes=partition.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(gone: dict[TopicPartition, PartitionFetch]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for (name, index), partition in gone.items():
        topic = topics.setdefault((name, partition.topic_id), ForgottenTopic(topic=name, topic_id=partition.topic_id))
        topic.partitions.append(index)
    return list(topics.values())
