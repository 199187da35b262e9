"""Committing a group's offsets in a transaction, with the group's generation (KIP-447)."""

from collections.abc import Mapping

from kbroker.simulation.checker.history import Commit, Outcome, TopicPartition
from kbroker.simulation.clients.connections.cluster import GROUP
from kbroker.simulation.clients.connections.connection import SimClientConnection
from kbroker.simulation.clients.connections.coordinator import (
    AbortableError,
    Attempts,
    CoordinatorClient,
    first_error,
    transaction_error,
)
from kbroker.simulation.clients.group_offsets import Membership, OffsetAndEpoch
from kbroker.simulation.clients.transactional import FIRST_OF_VERSION_2, VERSION_2, TransactionalProducer
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.messages.k22_transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def send_offsets(
    producer: TransactionalProducer,
    group: str,
    membership: Membership,
    positions: Mapping[TopicPartition, OffsetAndEpoch],
) -> None:
    """Commit offsets with the transaction. Raises AbortableError, FatalError; both also fail the transaction."""
    action = Commit(
        group,
        membership.member_id,
        membership.generation,
        {tp: offset for tp, (offset, _) in positions.items()},
        producer.transaction,
    )
    operation = producer.history.begin(producer.process, action)
    attempts = Attempts()
    outcome, detail = Outcome.UNKNOWN, "cancelled"
    try:
        code = ErrorCode.NONE
        if producer.version < VERSION_2:
            code = await _add_offsets(producer, group)
        if not code:
            producer.started = True
            code = await _commit(producer, group, membership, positions, attempts)
        outcome = Outcome.UNKNOWN if code and attempts.maybe_applied else Outcome.FAILED if code else Outcome.OK
        detail = code.name if code else ""
    except TimeoutError:
        outcome, detail = Outcome.UNKNOWN if attempts.maybe_applied else Outcome.FAILED, "TimeoutError"
        producer.fail(AbortableError("offsets not committed in time"))
        raise AbortableError("offsets not committed in time") from None
    finally:
        producer.response_lost = producer.response_lost or attempts.response_lost
        producer.history.end(operation, outcome, detail)
    if code:
        producer.fail(transaction_error(code))
        raise transaction_error(code)


async def _add_offsets(producer: TransactionalProducer, group: str) -> ErrorCode:
    """Add the group's partition of __consumer_offsets to the transaction (version 1)."""
    producer_id, epoch = producer.identity
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )

    async def attempt(connection: SimClientConnection) -> ErrorCode:
        return ErrorCode((await connection.request(request, AddOffsetsToTxnResponse)).error_code)

    attempts = Attempts()
    try:
        return await producer.coordinator.request(attempt, producer.deadline(), attempts)
    finally:
        producer.response_lost = producer.response_lost or attempts.response_lost


async def _commit(
    producer: TransactionalProducer,
    group: str,
    membership: Membership,
    positions: Mapping[TopicPartition, OffsetAndEpoch],
    attempts: Attempts,
) -> ErrorCode:
    async def attempt(connection: SimClientConnection) -> ErrorCode:
        version = connection.version(ApiKey.TXN_OFFSET_COMMIT)
        if producer.version < VERSION_2:
            version = min(version, FIRST_OF_VERSION_2[ApiKey.TXN_OFFSET_COMMIT] - 1)
        request = _request(producer, group, membership, positions)
        response = await connection.request(request, TxnOffsetCommitResponse, version=version)
        return first_error(
            ErrorCode(partition.error_code) for topic in response.topics for partition in topic.partitions
        )

    coordinator = CoordinatorClient(producer.cluster, group, GROUP)
    try:
        return await coordinator.request(attempt, producer.deadline(), attempts)
    finally:
        coordinator.disconnect()


def _request(
    producer: TransactionalProducer,
    group: str,
    membership: Membership,
    positions: Mapping[TopicPartition, OffsetAndEpoch],
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
        generation_id=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=list(topics.values()),
    )
