"""A broker that neither the coordination service nor other brokers reach gives up its roles: clients ask others."""

import asyncio
from random import Random

import pytest

from kbroker.api.k02_list_offsets import CONSUMER, LATEST
from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.consumer import Consumer
from kbroker.simulation.clients.producer import Producer
from kbroker.simulation.clients.records import ValueSource
from kbroker.simulation.coordination.service import SESSION_MS
from kbroker.simulation.runtime.machine import PORT
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.unit.simulation.coordination.test_fencing_check import SESSION_S, ThreeBrokers
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)
ALL = [1, 2, 3]
TP = ("t", 0)
# The service is found silent after two thirds of a session timeout, and the brokers after one and a half.
GIVING_UP_S = 2.2 * SESSION_S + 6


def cut_off(s: ThreeBrokers | SimulatedCluster, broker: int, direction: str) -> None:
    """Cut a broker off from the service, and from the others: what it sends ("from"), what it receives ("to"), or both.

    A session over TCP ends in each case.
    """
    name = s.machines[broker].name
    s.service.cut(name)
    for other, machine in s.machines.items():
        if other != broker and direction != "to":
            s.loop.network.faults.cut(name, machine.name)
        if other != broker and direction != "from":
            s.loop.network.faults.cut(machine.name, name)


def heal(s: ThreeBrokers | SimulatedCluster, broker: int) -> None:
    name = s.machines[broker].name
    s.loop.network.faults.heal_all()
    s.service.heal(name)


@pytest.mark.parametrize("direction", ["both", "from", "to"])
@simulated(ThreeBrokers, SEEDS)
async def test_it_leads_nothing_until_it_has_joined_again(s: ThreeBrokers, direction: str) -> None:
    epoch = s.epoch(2)
    cut_off(s, 2, direction)
    await s.until(lambda: not s.led(2), GIVING_UP_S)
    assert 2 not in s.broker(2).services.metadata.brokers
    await s.until(lambda: len(s.led(1)) + len(s.led(3)) == 3, 2 * SESSION_S)
    heal(s, 2)
    await s.until(lambda: s.epoch(2) > epoch, 30)
    await s.until(lambda: all(s.isr(2, index) == ALL for index in range(3)), 60)


class Cluster3(SimulatedCluster):
    def configs(self, node_id: int) -> dict[str, str]:
        return super().configs(node_id) | {"zookeeper.session.timeout.ms": str(SESSION_MS)}


@pytest.mark.parametrize("direction", ["both", "from", "to"])
@simulated(Cluster3, SEEDS)
async def test_a_consumer_goes_on(s: Cluster3, direction: str) -> None:
    """It fetches from the former leader without an error, so it asks no other broker until that one gives up."""
    await s.create([2, 1, 3])
    history, values = History(lambda: s.loop.elapsed_ns), ValueSource()
    addresses = [(machine.name, PORT) for machine in s.machines.values()]
    loop, other_loop = s.host("consumer"), s.host("producer")
    cluster = Cluster(loop, addresses, Random(s.seed), "consumer")
    consumer = Consumer(cluster, history, "consumer", Random(s.seed))
    other_cluster = Cluster(other_loop, addresses, Random(s.seed), "producer")
    producer = Producer(other_cluster, history, "producer", Random(s.seed))
    consumer.assign({TP: 0})
    offsets: list[int] = []

    async def consume() -> None:
        while True:
            offsets.extend(read.offset for read in await consumer.poll())

    async def send() -> None:
        await producer.send(TP, values.allocate(1))

    consuming = loop.create_task(consume())
    await other_loop.run(send())
    await s.until(lambda: offsets == [0], 10)
    cut_off(s, 2, direction)
    await s.until(lambda: s.registration(1).leader != 2, 2 * SESSION_S)
    other_loop.create_task(send())
    await s.until(lambda: s.replica(s.registration(1).leader).state.high_watermark == 2, 30)
    await s.until(lambda: offsets == [0, 1], GIVING_UP_S)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    response = await s.client(2, lambda client: client.request(request, 12, MetadataResponse))
    (partition,) = response.topics[0].partitions
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert [broker.node_id for broker in response.brokers] == [1, 3]
    consuming.cancel()
    cluster.close()
    other_cluster.close()


@pytest.mark.parametrize("direction", ["both", "from", "to"])
@simulated(Cluster3, SEEDS)
async def test_it_returns_no_latest_offsets_once_another_broker_may_lead(s: Cluster3, direction: str) -> None:
    """The admin client of Spark's driver sends no leader epoch, and takes a lower offset for lost records."""

    async def error_of_latest(s: Cluster3) -> int:
        partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=CONSUMER, topics=[ListOffsetsTopic(name="t", partitions=[partition])])
        response = await s.client(2, lambda client: client.request(request, 10, ListOffsetsResponse))
        return response.topics[0].partitions[0].error_code

    await s.create([2, 1, 3])
    assert await error_of_latest(s) == ErrorCode.NONE
    cut_off(s, 2, direction)
    await s.until(lambda: s.registration(1).leader != 2, 2 * SESSION_S)
    assert await error_of_latest(s) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    heal(s, 2)
    await s.until(lambda: s.registration(2).leader != 2 and 2 in s.registration(2).isr, 60)


@simulated(ThreeBrokers, SEEDS)
async def test_a_broker_whose_peers_were_stopped_during_an_outage_continues(s: ThreeBrokers) -> None:
    """Their hosts refuse connections, so they lead nothing."""
    led = s.led(2)
    s.service.stop()
    for other in (1, 3):
        s.machines[other].kill()
    await asyncio.sleep(60)
    assert s.led(2) == led


@simulated(ThreeBrokers, SEEDS)
async def test_one_other_broker_that_responds_is_enough(s: ThreeBrokers) -> None:
    led = s.led(2)
    s.service.stop()
    s.loop.network.faults.partition("broker2", "broker1")
    await asyncio.sleep(60)
    assert s.led(2) == led


@simulated(ThreeBrokers, SEEDS)
async def test_an_outage_of_everything_ends_with_the_network(s: ThreeBrokers) -> None:
    """No session has expired, and each broker closes its own: nobody waits for its timeout."""
    s.service.stop()
    for one, other in ((1, 2), (1, 3), (2, 3)):
        s.loop.network.faults.partition(f"broker{one}", f"broker{other}")
    await s.until(lambda: not any(s.led(number) for number in ALL), GIVING_UP_S)
    s.loop.network.faults.heal_all()
    s.service.start()
    await s.until(lambda: sum(len(s.led(number)) for number in ALL) == 3, SESSION_S + 4)
    await s.until(lambda: all(s.isr(1, index) == ALL for index in range(3)), 60)
