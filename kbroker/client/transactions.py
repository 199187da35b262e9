"""A blocking producer of transactions with the offsets of a group, by version 1 of the protocol (KIP-98).

All brokers have it. With version 2 (KIP-890), partitions and groups are added by other requests.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kbroker.client.cluster import ClusterClient
from kbroker.client.producer import BlockingProducer
from kbroker.client.requests import TRANSACTION, by_topic, check
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.messages.k22_transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)

# The cluster client must not use later versions, those of version 2 of the protocol.
LAST_VERSIONS: dict[int, int] = {
    ApiKey.PRODUCE: 11,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}


class BlockingTransactionalProducer(BlockingProducer):
    """Add records, and commit them with offsets. A newer producer with the same transactional id fences this one.

    An error leaves a transaction open, which the next producer aborts, or a timeout.
    """

    def __init__(self, cluster: ClusterClient, transactional_id: str) -> None:
        """Abort what an older producer has left open. Raises BrokerError, BrokerUnreachable."""
        super().__init__(cluster, transactional_id=transactional_id)
        self._id = transactional_id
        self._subject = f"transactional id {transactional_id}"
        self._partitions: set[TopicPartition] = set()
        self.init_producer_id()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the added records, and offsets of a group without members. Raises as `add`."""
        self.flush()
        id_, epoch = self.identity
        adding = AddOffsetsToTxnRequest(
            transactional_id=self._id, producer_id=id_, producer_epoch=epoch, group_id=group
        )
        check(self._at_coordinator(adding, AddOffsetsToTxnResponse, _error_code).error_code, self._subject)
        self._commit_offsets(group, offsets)
        ending = EndTxnRequest(transactional_id=self._id, producer_id=id_, producer_epoch=epoch, committed=True)
        check(self._at_coordinator(ending, EndTxnResponse, _error_code).error_code, self._subject)
        self._partitions.clear()

    def _prepare(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions to the transaction before records are sent to them."""
        new = [partition for partition in partitions if partition not in self._partitions]
        if not new:
            return
        id_, epoch = self.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=id_,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in by_topic(new).items()
            ],
        )
        response = self._at_coordinator(request, AddPartitionsToTxnResponse, _first_error)
        check(_first_error(response), self._subject)
        self._partitions.update(new)

    def _commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        id_, epoch = self.identity
        topics = [
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offsets[TopicPartition(topic, index)],
                        committed_metadata="",
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self._id, group_id=group, producer_id=id_, producer_epoch=epoch, topics=topics
        )
        response = self._cluster.coordinated(group, request, TxnOffsetCommitResponse, _first_offset_error)
        check(_first_offset_error(response), f"group {group}")

    def _at_coordinator(self, request: Message, response_type: type[M], error_code: Callable[[M], int]) -> M:
        return self._cluster.coordinated(self._id, request, response_type, error_code, TRANSACTION)


def _error_code(response: AddOffsetsToTxnResponse | EndTxnResponse) -> int:
    return response.error_code


def _first_error(response: AddPartitionsToTxnResponse) -> int:
    """Return the error to report: OPERATION_NOT_ATTEMPTED only says that another partition has one."""
    topics = response.results_by_topic_v3_and_below
    codes = [row.partition_error_code for topic in topics for row in topic.results_by_partition]
    codes = [code for code in codes if code]
    return next((code for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED), codes[0] if codes else 0)


def _first_offset_error(response: TxnOffsetCommitResponse) -> int:
    return next((row.error_code for topic in response.topics for row in topic.partitions if row.error_code), 0)
