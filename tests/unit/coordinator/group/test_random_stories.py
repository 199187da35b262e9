"""Many random stories of one group, each from a seed: invariants hold after every step, everybody is answered in
the end, and a broker that loads the log knows what the one that wrote it knew."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.coordinator.group.classic.classic_group import JOIN_DEADLINE, SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.record_codec import decode_record
from kbroker.coordinator.group.records import OffsetKey, OffsetRecord
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.k12_heartbeat import HeartbeatRequest
from protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from protocol.messages.k22_init_producer_id import InitProducerIdRequest
from protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest
from protocol.messages.k26_end_txn import EndTxnRequest
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from protocol.records.batch import body_of, iter_headers
from protocol.records.control import COMMIT, control_type
from protocol.records.record import iter_records
from tests.unit.support.group_coordinator import Harness

STEPS = 250
SESSION_MS, REBALANCE_MS = 3_000, 2_000
ACCEPTED = {
    ErrorCode.NONE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
}


class Client:
    """One consumer that does at random what consumers may do, in order or not."""

    def __init__(self, number: int) -> None:
        self.instance = f"i{number}" if number % 2 else None
        self.member_id = ""
        self.generation = -1
        self.leads: list[str] = []
        self.request: Any = None
        self.task: asyncio.Task[Any] | None = None

    def next_request(self, random: Random) -> tuple[Any, int]:
        choice = random.random()
        if choice < 0.35 or not self.member_id:
            names = random.choice((["a", "b"], ["b", "a"], ["a", "b"], ["a"], ["c"]))
            return JoinGroupRequest(
                group_id="g",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id="" if random.random() < 0.1 else self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=name, metadata=name.encode()) for name in names],
            ), random.choice((5, 8, 9))
        if choice < 0.7:
            text = f"{self.generation}".encode()
            assignments = [SyncGroupRequestAssignment(member_id=one, assignment=text) for one in self.leads]
            return self._with_member(SyncGroupRequest(assignments=assignments)), 4
        if choice < 0.85:
            return self._with_member(HeartbeatRequest()), 4
        if choice < 0.95:
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=random.randrange(100))
            return OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance,
                topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
            ), 9
        member = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        return LeaveGroupRequest(group_id="g", members=[member]), 3

    def _with_member(self, request: Any) -> Any:
        request.group_id, request.generation_id = "g", self.generation
        request.member_id, request.group_instance_id = self.member_id, self.instance
        return request

    def take(self, answer: Any) -> None:
        """Learn from an answer, as a consumer does, and check that it is one that a consumer may get."""
        code = getattr(answer, "error_code", None)
        if code is not None:
            assert ErrorCode(code) in ACCEPTED, (self.request, answer)
        if isinstance(self.request, JoinGroupRequest) and code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.leads = [member.member_id for member in answer.members]
        if isinstance(self.request, SyncGroupRequest) and code == 0:
            # An assignment is of the generation that the client is in, whatever came between.
            assert answer.assignment in (b"", f"{self.request.generation_id}".encode())
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""


class Transactor:
    """A producer that commits the group's offsets in transactions, of either version."""

    def __init__(self, number: int) -> None:
        self.name = f"T{number}"
        self.old = bool(number % 2)
        self.producer: tuple[int, int] | None = None
        self.began = False
        self.request: Any = None
        self.task: asyncio.Task[Any] | None = None

    def next_request(self, random: Random) -> tuple[Any, int]:
        if self.producer is None or random.random() < 0.05:
            return InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=5_000), 4 if self.old else 5
        producer_id, epoch = self.producer
        identity: Any = {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch}
        if self.old and not self.began:
            return AddOffsetsToTxnRequest(**identity, group_id="g"), 3
        if random.random() < 0.5:
            partition = TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=random.randrange(100, 200), committed_metadata=None
            )
            topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
            return TxnOffsetCommitRequest(**identity, group_id="g", topics=topics), 3 if self.old else 5
        return EndTxnRequest(**identity, committed=random.random() < 0.6), 4 if self.old else 5

    def take(self, answer: Any) -> None:
        request = self.request
        code = answer.topics[0].partitions[0].error_code if hasattr(answer, "topics") else answer.error_code
        assert code != ErrorCode.UNKNOWN_SERVER_ERROR, (request, answer)
        if code != ErrorCode.NONE:
            # It does not know what became of its transaction: it begins anew.
            self.producer = None
        elif isinstance(request, InitProducerIdRequest):
            self.producer, self.began = (answer.producer_id, answer.producer_epoch), False
        elif isinstance(request, EndTxnRequest):
            self.began = False
            if not self.old:
                self.producer = (answer.producer_id, answer.producer_epoch)
        else:
            self.began = True


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        # In every other story the log refuses an append now and then.
        self.refuses = bool(seed % 2)
        self.broker = Harness(
            group_max_size=self.random.choice((2, 3, 100)),
            group_initial_rebalance_delay_ms=self.random.choice((0, 700)),
        )
        self.broker.create_topic("t", 1)
        self.clients: list[Client | Transactor] = [Client(number) for number in range(5)]
        self.clients += [Transactor(number) for number in range(3)]

    def step(self) -> None:
        random, broker = self.random, self.broker
        client = random.choice(self.clients)
        if client.task is None:
            client.request, version = client.next_request(random)
            client.task = broker.loop.create_task(broker.serve(client.request, version))
        elif random.random() < 0.02:
            client.task.cancel()
        if random.random() < 0.03:
            broker.loop.create_task(broker.serve(DeleteGroupsRequest(groups_names=["g"]), 2))
        if random.random() < 0.1:
            broker.log.held = not broker.log.held
        if random.random() < 0.3:
            broker.log.commit(random.choice((1, None)))
        if self.refuses:
            broker.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS if random.random() < 0.03 else None
        broker.loop.settle()
        if random.random() < 0.5:
            broker.loop.pass_ms(random.choice((1, 50, 400, 1_500)))
        self.collect()

    def collect(self) -> None:
        for client in self.clients:
            if client.task is not None and client.task.done():
                if not client.task.cancelled():
                    client.take(client.task.result())
                client.task = None
        group = self.broker.groups.group("g")
        if group is not None:
            check(group)

    def end(self) -> None:
        """Nobody asks any more: within the longest timeouts all are answered and all members are gone."""
        self.broker.log.held, self.broker.log.refusal = False, None
        self.broker.log.commit()
        for _ in range(12):
            self.broker.loop.pass_ms(SESSION_MS)
            self.broker.log.commit()
        self.collect()
        assert all(client.task is None for client in self.clients)
        group = self.broker.groups.group("g")
        assert group is None or group.state is GroupState.EMPTY
        shard = self.broker.groups._owned._shards[self.broker.groups.partition_for("g")]
        assert not shard._gates
        # Transactions that nobody ends time out.
        assert not shard.groups.pending


def check(group: ClassicGroup) -> None:
    members = list(group.members.values())
    assert group.joining == sum(member.joining is not None for member in members)
    assert group.static == {one.instance_id: one.member_id for one in members if one.instance_id is not None}
    assert group.leader in group.members if members else group.leader is None
    assert not group.pending_joins & group.members.keys()
    assert group.pending_syncs <= group.members.keys()
    for member_id in (*group.members, *group.pending_joins):
        waits = member_id in group.members and group.members[member_id].waits()
        assert waits or ("session", member_id) in group.deadlines, f"{member_id} would stay for ever"
    if group.state is GroupState.EMPTY:
        assert not members
    if group.state is GroupState.PREPARING_REBALANCE:
        assert JOIN_DEADLINE in group.deadlines
    else:
        assert group.joining == 0
    if group.state is GroupState.COMPLETING_REBALANCE:
        assert SYNC_DEADLINE in group.deadlines or not group.pending_syncs
    else:
        assert not any(member.syncing is not None for member in members)


def durable(broker: Harness) -> tuple[Any, ...]:
    """What must be the same after a restart, of a group that is not in a rebalance."""
    group = broker.groups.group("g")
    offsets = broker.run(broker.groups.offsets("g", after_commits=True))
    kept = sorted((topic, partition, one.offset) for topic, partition, one in offsets or ())
    kept += sorted((topic, partition, "pending") for topic, partition in broker.groups.pending_offsets("g"))
    if group is None or group.state not in (GroupState.STABLE, GroupState.EMPTY):
        return (kept,)
    members = sorted((one.member_id, one.instance_id, one.assignment) for one in group.members.values())
    return kept, group.state, group.generation, group.leader, members


def by_the_log(broker: Harness) -> list[Any]:
    """What the group's offsets are by what is in the log, in Kafka's words: each has its place there, and the end of a
    transaction brings those that stand behind the ones they replace."""
    offsets: dict[OffsetKey, tuple[int, int]] = {}
    pending: dict[int, dict[OffsetKey, tuple[int, int]]] = {}
    data = b"".join(broker.log.batches[TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_for("g"))])
    for pos, header in iter_headers(data):
        for found in iter_records(body_of(data, pos, header.size), header.count, header.base_timestamp):
            if header.is_control:
                for key, one in pending.pop(header.producer_id, {}).items():
                    if control_type(found.key) == COMMIT and one[1] > offsets.get(key, (0, -1))[1]:
                        offsets[key] = one
                continue
            record = decode_record(found.key, found.value)
            if not isinstance(record, OffsetRecord):
                continue
            if record.value is None:
                for store in (offsets, *pending.values()):
                    store.pop(record.key, None)
            else:
                store = pending.setdefault(header.producer_id, {}) if header.is_transactional else offsets
                store[record.key] = (record.value.offset, header.base_offset + found.offset_delta)
    kept: list[Any] = sorted((key.topic, key.partition, offset) for key, (offset, _) in offsets.items())
    still_open = {key for store in pending.values() for key in store}
    return kept + sorted((key.topic, key.partition, "pending") for key in still_open)


@pytest.mark.parametrize("seed", range(20))
def test_a_random_story(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    story.broker.log.held, story.broker.log.refusal = False, None
    story.broker.log.commit()
    # What is prepared of transactions is completed.
    story.broker.loop.pass_ms(3_000)
    before = durable(story.broker)
    assert before[0] == by_the_log(story.broker)
    again = Harness(story.broker.log)
    again.run(again.groups.loaded("g"))
    after = durable(again)
    # A group that became empty and could not be written comes back with its last members, as in Kafka; they time out.
    assert after[0] == before[0]
    assert story.refuses or after[: len(before)] == before
    story.end()
    again.close()
    story.broker.close()
