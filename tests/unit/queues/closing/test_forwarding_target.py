"""Forwarded batches in the partition that remains: each is stored once."""

from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.queues.closing.forwarding import append_forwarded
from kbroker.storage.producers.producer_state_manager import FIRST_FORWARDER_ID
from protocol.errors import ErrorCode
from protocol.records.batch import build_batch
from tests.unit.support.simulated_broker import Machine, broker_test


def batch(position: int, producer_id: int = FIRST_FORWARDER_ID) -> bytes:
    epoch, sequence = divmod(position, 1 << 31)
    fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return bytes(build_batch([(1, None, b"v", [])], **fields))


@broker_test
async def test_batches_are_stored_once(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    partition = m.partition("t")
    environment = m.broker.environment
    assert await append_forwarded(environment, partition, batch(3) + batch(9)) == 9
    later = (1 << 31) + 2
    assert await append_forwarded(environment, partition, batch(3) + batch(9) + batch(later)) == later
    # The result is what is stored, although less was sent.
    assert await append_forwarded(environment, partition, batch(9)) == later
    assert await append_forwarded(environment, partition, batch(0, FIRST_FORWARDER_ID + 1)) == 0
    assert partition.log.log_end_offset == 4
    # It is remembered however long nothing is forwarded.
    assert partition.log.producers.remove_expired(1 << 50, 1) == 0


@broker_test
async def test_clients_cannot_be_forwarders(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    partition = m.partition("t")
    assert (await client.produce("t", batch(0))).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for records in (batch(0, 5), b""):
        with pytest.raises(KafkaError) as raised:
            await append_forwarded(m.broker.environment, partition, records)
        assert raised.value.code == ErrorCode.INVALID_RECORD
    assert partition.log.log_end_offset == 0
