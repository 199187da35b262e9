"""A transactional producer that sends exactly the requests of a test, in any version."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.messages.k00_produce import PartitionProduceResponse, ProduceResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k22_transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine

TIMEOUT_MS = 60_000
Partitions = Mapping[str, Sequence[int]]


@dataclass
class Producer:
    """A producer whose methods return error codes. `v2`: it uses transaction version 2."""

    client: Client
    transactional_id: str = "t"
    v2: bool = True
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def _identity(self) -> dict[str, object]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    async def find(self, version: int = 6) -> int:
        """Return the node id of the coordinator. The first call creates __transaction_state."""
        if version >= 4:
            request = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
            response = await self.client.request(request, version, FindCoordinatorResponse)
            assert response.coordinators[0].error_code == 0
            return response.coordinators[0].node_id
        response = await self.client.request(
            FindCoordinatorRequest(key_type=1, key=self.transactional_id), version, FindCoordinatorResponse
        )
        assert response.error_code == 0
        return response.node_id

    async def init(self, version: int = 5, *, keep: bool = False, timeout_ms: int = TIMEOUT_MS) -> int:
        """`keep`: send the current producer id and epoch (KIP-360)."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)
        if keep:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        response = await self.client.request(request, version, InitProducerIdResponse)
        if response.error_code == 0:
            self._set_producer(response.producer_id, response.producer_epoch)
        return response.error_code

    def _set_producer(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def batch(self, *values: bytes, sequence: int = 0, transactional: bool = True) -> bytearray:
        return build_batch(
            [(1_700_000_000_000, None, value, ()) for value in values],
            attributes=TRANSACTIONAL if transactional else 0,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )

    async def send(
        self, topic: str, *values: bytes, partition: int = 0, version: int | None = None
    ) -> PartitionProduceResponse:
        """Send records of the open transaction, with the next sequence."""
        sequence = self.sequences.get((topic, partition), 0)
        version = (12 if self.v2 else 11) if version is None else version
        batches = {partition: self.batch(*values, sequence=sequence)}
        ((response,),) = await self.send_all({topic: batches}, version=version)
        if response.error_code == 0:
            self.sequences[topic, partition] = sequence + len(values)
        return response

    async def send_all(
        self, topics: Mapping[str, Mapping[int, bytearray]], *, version: int, name_it: bool = True
    ) -> list[list[PartitionProduceResponse]]:
        """Send one Produce request. Returns the partition responses of each topic.

        `name_it`: the request has the transactional id.
        """
        request = None
        for topic, batches in topics.items():
            part = self.client.produce_request(topic, batches)
            if request is None:
                request = part
            else:
                request.topic_data += part.topic_data
        assert request is not None
        request.transactional_id = self.transactional_id if name_it else None
        response = await self.client.request(request, version, ProduceResponse)
        return [topic.partition_responses for topic in response.responses]

    async def add(self, partitions: Partitions, version: int = 3) -> list[AddPartitionsToTxnTopicResult]:
        topics = [AddPartitionsToTxnTopic(name=name, partitions=list(of)) for name, of in partitions.items()]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        response = await self.client.request(request, version, AddPartitionsToTxnResponse)
        return response.results_by_topic_v3_and_below

    def transaction(self, partitions: Partitions, *, verify_only: bool = False) -> AddPartitionsToTxnTransaction:
        """Return the transaction of a request that a broker sends."""
        topics = [AddPartitionsToTxnTopic(name=name, partitions=list(of)) for name, of in partitions.items()]
        return AddPartitionsToTxnTransaction(**self._identity, topics=topics, verify_only=verify_only)

    async def add_offsets(self, group_id: str = "g", version: int = 4) -> int:
        request = AddOffsetsToTxnRequest(**self._identity, group_id=group_id)
        return (await self.client.request(request, version, AddOffsetsToTxnResponse)).error_code

    async def end(self, committed: bool, version: int | None = None) -> int:
        version = (5 if self.v2 else 4) if version is None else version
        response = await self.client.request(
            EndTxnRequest(**self._identity, committed=committed), version, EndTxnResponse
        )
        if response.error_code == 0 and version >= 5:
            self._set_producer(response.producer_id, response.producer_epoch)
        return response.error_code

    async def commit(self, version: int | None = None) -> int:
        return await self.end(True, version)

    async def abort(self, version: int | None = None) -> int:
        return await self.end(False, version)

    async def describe(self) -> TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        return (await self.client.request(request, 0, DescribeTransactionsResponse)).transaction_states[0]

    async def wait_until_completed(self) -> str:
        """Wait until the last transaction is completed, and return its state."""
        while (state := (await self.describe()).transaction_state) not in ("Empty", "CompleteCommit", "CompleteAbort"):
            await asyncio.sleep(0.01)
        return state


async def init_producer(m: Machine, transactional_id: str = "t", *, v2: bool = True) -> Producer:
    """Return a producer with a producer id, and create the topics "a" (3 partitions) and "b" (1)."""
    client = await m.client()
    if m.broker.services.metadata.topics.get("a") is None:
        await client.create_topic("a", 3)
        await client.create_topic("b")
    new = Producer(client, transactional_id, v2)
    await new.find()
    assert await new.init() == 0
    return new


async def write_marker(
    client: Client,
    producer_id: int,
    epoch: int,
    partitions: Partitions,
    *,
    committed: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
    version: int = 2,
) -> dict[tuple[str, int], int]:
    """Send WriteTxnMarkers, and return the error code of each partition."""
    topics = [WritableTxnMarkerTopic(name=name, partition_indexes=list(of)) for name, of in partitions.items()]
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=topics,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    response = await client.request(WriteTxnMarkersRequest(markers=[marker]), version, WriteTxnMarkersResponse)
    return {
        (topic.name, partition.partition_index): partition.error_code
        for marker_result in response.markers
        for topic in marker_result.topics
        for partition in topic.partitions
    }


def codes(results: Sequence[AddPartitionsToTxnTopicResult]) -> dict[str, dict[int, int]]:
    return {
        topic.name: {result.partition_index: result.partition_error_code for result in topic.results_by_partition}
        for topic in results
    }
