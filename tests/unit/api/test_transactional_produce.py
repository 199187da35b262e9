"""Produce with a transactional id: what the connection does meanwhile."""

import asyncio

from kbroker.simulation.clock import EPOCH_MS
from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.unit.client import Client
from tests.unit.harness import Machine, story

PASSING = {14, 15, 16, 51}


async def transactional_producer(client: Client, transactional_id: str) -> InitProducerIdResponse:
    """A producer id; the coordinators' topic is made when it is asked for the first time."""
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    while True:
        found = await client.ask(find, 6, FindCoordinatorResponse)
        answer = await client.ask(request, 5, InitProducerIdResponse)
        if found.coordinators[0].error_code == 0 and answer.error_code == 0:
            return answer
        assert answer.error_code in PASSING
        await asyncio.sleep(0.1)


@story
async def test_what_others_send_while_partitions_are_added_changes_no_batch(m: Machine) -> None:
    clients = [await m.client() for _ in range(3)]
    topic_id = await clients[0].create_topic("t", len(clients))
    producers = [await transactional_producer(client, f"tx-{index}") for index, client in enumerate(clients)]
    answers = []
    # All of it comes in one turn of the loop, and all connections share the buffer that it is received in.
    for index, (client, connection) in enumerate(zip(clients, m.broker._server.connections, strict=True)):
        client.ids["t"] = topic_id
        records = build_batch(
            [(EPOCH_MS, None, b"%d" % index * 1000, ())],
            attributes=TRANSACTIONAL,
            producer_id=producers[index].producer_id,
            producer_epoch=producers[index].producer_epoch,
            base_sequence=0,
        )
        request = client.produce_request("t", {index: records})
        request.transactional_id = f"tx-{index}"
        frame = client.encoded(request, 13)
        answers.append(client.expect(request, 13, ProduceResponse))
        connection.get_buffer(-1)[: len(frame)] = frame
        connection.buffer_updated(len(frame))
    for answer in await asyncio.gather(*answers):
        assert answer.responses[0].partition_responses[0].error_code == 0
    for index, client in enumerate(clients):
        assert await client.read("t", 0, index) == [b"%d" % index * 1000]
