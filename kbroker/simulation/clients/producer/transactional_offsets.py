"""A group's offsets within a transaction, with the group's generation (KIP-447)."""

from collections.abc import Mapping

from kbroker.simulation.checker.history import Commit, Outcome, Place
from kbroker.simulation.clients.connections.cluster import GROUP
from kbroker.simulation.clients.connections.connection import SimClientConnection
from kbroker.simulation.clients.connections.coordinator import AbortableError, Coordinator, Tries, error_of, first_error
from kbroker.simulation.clients.consumer.group_offsets import At, Membership
from kbroker.simulation.clients.producer.transactional import FIRST_OF_VERSION_2, VERSION_2, TransactionalProducer
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)


async def send_offsets(
    producer: TransactionalProducer, group: str, who: Membership, positions: Mapping[Place, At]
) -> None:
    """Commit (offset, leader epoch) of partitions when the transaction is committed. Raises AbortableError, FatalError,
    and they are the transaction's then."""
    action = Commit(
        group,
        who.member_id,
        who.generation,
        {place: offset for place, (offset, _) in positions.items()},
        producer.transaction,
    )
    operation = producer.history.begin(producer.process, action)
    tries = Tries()
    outcome, detail = Outcome.UNKNOWN, "cancelled"
    try:
        code = ErrorCode.NONE
        if producer.version < VERSION_2:
            code = await _add_offsets(producer, group)
        if not code:
            producer.started = True
            code = await _commit(producer, group, who, positions, tries)
        outcome = Outcome.UNKNOWN if code and tries.undecided else Outcome.FAILED if code else Outcome.OK
        detail = code.name if code else ""
    except TimeoutError:
        outcome, detail = Outcome.UNKNOWN if tries.undecided else Outcome.FAILED, "TimeoutError"
        producer.fail(AbortableError("offsets not committed in time"))
        raise AbortableError("offsets not committed in time") from None
    finally:
        producer.lost = producer.lost or tries.lost
        producer.history.end(operation, outcome, detail)
    if code:
        producer.fail(error_of(code))
        raise error_of(code)


async def _add_offsets(producer: TransactionalProducer, group: str) -> ErrorCode:
    """Version 1: the partition of __consumer_offsets becomes a part of the transaction."""
    producer_id, epoch = producer.identity
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )

    async def attempt(connection: SimClientConnection) -> ErrorCode:
        return ErrorCode((await connection.request(request, AddOffsetsToTxnResponse)).error_code)

    tries = Tries()
    try:
        return await producer.coordinator.ask(attempt, producer.deadline(), tries)
    finally:
        producer.lost = producer.lost or tries.lost


async def _commit(
    producer: TransactionalProducer, group: str, who: Membership, positions: Mapping[Place, At], tries: Tries
) -> ErrorCode:
    async def attempt(connection: SimClientConnection) -> ErrorCode:
        version = connection.version(ApiKey.TXN_OFFSET_COMMIT)
        if producer.version < VERSION_2:
            version = min(version, FIRST_OF_VERSION_2[ApiKey.TXN_OFFSET_COMMIT] - 1)
        request = _request(producer, group, who, positions)
        answer = await connection.request(request, TxnOffsetCommitResponse, version=version)
        return first_error(ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions)

    coordinator = Coordinator(producer.cluster, group, GROUP)
    try:
        return await coordinator.ask(attempt, producer.deadline(), tries)
    finally:
        coordinator.leave()


def _request(
    producer: TransactionalProducer, group: str, who: Membership, positions: Mapping[Place, At]
) -> TxnOffsetCommitRequest:
    producer_id, epoch = producer.identity
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (name, index), (offset, leader_epoch) in positions.items():
        topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name))
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata="",
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        generation_id=who.generation,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        topics=list(topics.values()),
    )
