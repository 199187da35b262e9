"""Produce with a transactional id: the partitions are verified to be part of the transaction (KIP-890).

A partition in which the producer already has an open transaction need not be verified. The other partitions of a
request are verified together:
- From version 12 on the client uses transactions version 2: the broker adds the partitions to the transaction. While
  the coordinator completes the previous transaction it returns CONCURRENT_TRANSACTIONS; the broker retries for
  add.partitions.to.txn.retry.backoff.max.ms, because the client's retry would take longer.
- Older clients add the partitions themselves, and the coordinator verifies this
  (transaction.partition.verification.enable).
- The coordinator may be on another broker. Only the verification by this broker's own coordinator needs no waiting.

Each batch is then appended with a guard, which is issued before the coordinator is called and becomes invalid if the
transaction ends before the append. Errors that older clients do not know, or do not retry, are translated.
"""

from asyncio import sleep
from collections.abc import Coroutine, Iterable
from typing import Any

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import PartitionErrors, ProducerIdentity
from kbroker.replica.produce.produce_response import (
    DelayedProduce,
    PartitionKey,
    VerificationError,
    VerifiedPartitions,
    copied,
)
from kbroker.runtime.turns import is_in_turn, paced, wait_in_turn
from protocol.errors import ErrorCode
from protocol.fast.produce import ProduceRequest, TopicRecords, TopicResult
from protocol.records.batch import CRC_START, HEADER_SIZE, MAGIC, MAGIC_POS, TRANSACTIONAL, BatchHeader, parse_header

# Versions of Produce.
FIRST_WITH_TRANSACTIONS_V2 = 12
FIRST_WITH_TRANSACTION_ABORTABLE = 11

# The lower byte of a batch's attributes.
_ATTRIBUTES_POS = CRC_START + 1

# Errors of the coordinator that are retriable. Clients retry NOT_ENOUGH_REPLICAS without refreshing their metadata.
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # The coordinator's broker does not know another partition of the request yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)

Response = list[TopicResult]


def append_transactional(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Response | DelayedProduce | Coroutine[Any, Any, Response | DelayedProduce]:
    """Verify the partitions, then append, as ReplicaManager.append_records does.

    Meanwhile no request of the connection is handled. Raises KafkaError if the request is refused for all partitions.
    """
    transactional_id, acks, timeout_ms, topics = request
    version = context.version
    uses_v2 = version >= FIRST_WITH_TRANSACTIONS_V2
    verified = VerifiedPartitions(services.config.transaction_partition_verification_enable)
    batches = transactional_batches(topics)
    if batches and (uses_v2 or verified.must_verify):
        producer_id, epoch = _only_producer(batches)
        if not _is_open(services, batches, producer_id, epoch):
            verification = Verification(services, version)
            verified = verification.verified
            producer = ProducerIdentity(transactional_id or "", producer_id, epoch)
            if uses_v2 or not services.add_partitions_to_txn.is_local(producer.transactional_id):
                if not is_in_turn():
                    if verification.begin(batches):
                        # The receive buffer is reused while the coordinator is asked.
                        owned = request._replace(topics=copied(topics))
                        return services.environment.turns.call(_append_in_turn, services, context, owned)
                else:
                    wait_in_turn(verification.add_or_verify(producer, batches))
            elif verification.begin(batches):
                verification.verify_local(producer)
    return services.replicas.append_records(
        topics, acks, timeout_ms, version, context.listener, verified, in_turn=is_in_turn()
    )


def _append_in_turn(services: Services, context: RequestContext, request: ProduceRequest) -> Response | DelayedProduce:
    response = append_transactional(services, context, request)
    assert not isinstance(response, Coroutine)
    return response


def _is_open(services: Services, keys: Iterable[PartitionKey], producer_id: int, epoch: int) -> bool:
    """Return whether the transaction is open in all partitions already, as it is after the first batch in each."""
    for topic, index in paced(keys):
        partition = services.replicas.get(topic, index)
        if partition is None or not partition.log.producers.has_open_transaction(producer_id, epoch):
            return False
    return True


def _only_producer(batches: dict[PartitionKey, BatchHeader]) -> tuple[int, int]:
    """Return the id and the epoch of the producer. Raises KafkaError if there are several."""
    producers = {(header.producer_id, header.producer_epoch) for header in batches.values()}
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )
    return producers.pop()


def has_transactional_batch(topics: list[TopicRecords]) -> bool:
    """Return whether any batch of a request is transactional. Called for every request with several batches."""
    try:
        for _, partitions in topics:
            for _, records in paced(partitions):
                if records[_ATTRIBUTES_POS] & TRANSACTIONAL:  # type: ignore[index]
                    return bool(transactional_batches(topics))
    except (IndexError, TypeError):
        # The records are missing or too short.
        return bool(transactional_batches(topics))
    return False


def transactional_batches(topics: list[TopicRecords]) -> dict[PartitionKey, BatchHeader]:
    """Return the headers of the transactional batches, which are not validated yet."""
    batches: dict[PartitionKey, BatchHeader] = {}
    for key, partitions in topics:
        for index, records in paced(partitions):
            if records is not None and len(records) >= HEADER_SIZE and records[MAGIC_POS] == MAGIC:
                header = parse_header(records)
                _, _, _, _, _, attributes, _, _, _, producer_id, _, _, _ = header
                if attributes & TRANSACTIONAL and producer_id >= 0:
                    batches[key, index] = header
    return batches


class Verification:
    """The verification of the partitions of one request. `verified` is its result."""

    __slots__ = ("_partitions", "_services", "_version", "verified")

    def __init__(self, services: Services, version: int) -> None:
        self._services = services
        self._version = version
        self.verified = VerifiedPartitions(services.config.transaction_partition_verification_enable)
        # The partitions that the coordinator has to verify or add.
        self._partitions: dict[PartitionKey, TopicPartition] = {}

    def begin(self, batches: dict[PartitionKey, BatchHeader]) -> bool:
        """Issue the guards. Returns whether the coordinator has to verify or add any partition."""
        verified = self.verified
        self._partitions.clear()
        verified.guards.clear()
        verified.errors.clear()
        uses_v2 = self._version >= FIRST_WITH_TRANSACTIONS_V2
        for key, header in batches.items():
            partition = self._services.replicas.get(*key)
            if partition is None or not partition.is_leader or partition.is_internal:
                # The append will report the error.
                continue
            try:
                guard = partition.log.producers.begin_verification(
                    header.producer_id, header.producer_epoch, header.base_sequence, uses_v2
                )
            except KafkaError as error:
                verified.errors[key] = VerificationError(error.code)
                continue
            if guard is not None:
                self._partitions[key] = partition.tp
                verified.guards[key] = guard
        return bool(self._partitions)

    def verify_local(self, producer: ProducerIdentity) -> None:
        """Verify with the coordinator of this broker that the client has added the partitions."""
        try:
            errors = self._services.add_partitions_to_txn.verify_local(producer, list(self._partitions.values()))
        except KafkaError as error:
            errors = self._all_with(error)
        self._set_errors(errors)

    async def add_or_verify(self, producer: ProducerIdentity, batches: dict[PartitionKey, BatchHeader]) -> None:
        """Add the partitions to the transaction, with retries, or verify that an older client has added them.

        The coordinator may be on any broker.
        """
        adds = self._version >= FIRST_WITH_TRANSACTIONS_V2
        services = self._services
        manager, config, clock = services.add_partitions_to_txn, services.config, services.environment.clock
        max_wait_ms = min(config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms)
        deadline_ms = clock.mono_ms() + max_wait_ms
        # Each attempt has new guards: markers of the previous transaction, appended since the last attempt, have
        # invalidated the old ones.
        while self.begin(batches):
            try:
                errors = await (manager.add if adds else manager.verify)(producer, list(self._partitions.values()))
            except KafkaError as error:
                errors = self._all_with(error)
            is_concurrent = adds and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if not is_concurrent or clock.mono_ms() >= deadline_ms:
                self._set_errors(errors)
                return
            await sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)

    def _all_with(self, error: KafkaError) -> PartitionErrors:
        return dict.fromkeys(self._partitions.values(), error.code)

    def _set_errors(self, errors: PartitionErrors) -> None:
        for key, tp in self._partitions.items():
            if errors[tp] is not ErrorCode.NONE:
                self.verified.errors[key] = translate(errors[tp], self._version)


def translate(code: ErrorCode, version: int) -> VerificationError:
    """Translate an error of the coordinator for a client with this version of Produce."""
    if code is ErrorCode.PRODUCER_FENCED:
        return VerificationError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code is ErrorCode.INVALID_TXN_STATE or (
        code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_TRANSACTION_ABORTABLE
    ):
        return VerificationError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code in RETRIABLE_ERRORS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_WITH_TRANSACTIONS_V2):
        message = "Unable to verify the partition has been added to the transaction. Underlying error: "
        return VerificationError(ErrorCode.NOT_ENOUGH_REPLICAS, message + code.name)
    return VerificationError(code)
