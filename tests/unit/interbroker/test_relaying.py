"""Requests of a broker that is cut off from the controller reach it through a third broker."""

import asyncio
from typing import Any

from kbroker.replica.logs.disk_reports import LOST_DIRECTORY
from protocol.errors import ErrorCode
from protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    BrokerState,
)
from protocol.messages.k73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
)
from tests.unit.support.peer_brokers import ForwardingBroker, ForwardingBrokers
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(3)
TOPIC = bytes(15) + b"\1"


def report_failed_log(broker: ForwardingBroker) -> "asyncio.Future[Any]":
    """Report to the controller that the log of a replica has failed."""
    partition = AssignReplicasToDirsRequestPartition(partition_index=0)
    topic = AssignReplicasToDirsRequestTopic(topic_id=TOPIC, partitions=[partition])
    request = AssignReplicasToDirsRequest(
        broker_id=broker.id,
        broker_epoch=broker.identity.broker_epoch,
        directories=[AssignReplicasToDirsRequestDirectory(id=LOST_DIRECTORY, topics=[topic])],
    )
    return broker.loop.run(broker.channel.request(request, 0, 10_000))


def shrink(broker: ForwardingBroker, timeout_ms: int = 10_000) -> "asyncio.Future[Any]":
    """Ask the controller to remove all followers of a partition."""
    isr = [BrokerState(broker_id=broker.id, broker_epoch=broker.identity.broker_epoch)]
    request = AlterPartitionRequest(
        broker_id=broker.id,
        broker_epoch=broker.identity.broker_epoch,
        topics=[
            AlterPartitionRequestTopic(
                topic_id=TOPIC, partitions=[AlterPartitionRequestPartition(partition_index=0, new_isr_with_epochs=isr)]
            )
        ],
    )
    return broker.loop.run(broker.channel.request(request, 3, timeout_ms))


@simulated(ForwardingBrokers, SEEDS)
async def test_a_third_broker_relays_what_the_controller_does_not_receive(s: ForwardingBrokers) -> None:
    assert (await shrink(s.two)).error_code == ErrorCode.NONE
    for cuts in ([("one", "two"), ("two", "one")], [("two", "one")], [("one", "two")]):
        for source, target in cuts:
            s.loop.network.faults.cut(getattr(s, source).host, getattr(s, target).host)
        before = s.loop.time()
        assert (await report_failed_log(s.two)).error_code == ErrorCode.NONE
        assert s.loop.time() - before < 5
        assert s.one.controller.failed[-1] == (2, s.two.identity.broker_epoch, TOPIC)
        before = s.loop.time()
        response = await shrink(s.two)
        assert isinstance(response, AlterPartitionResponse)
        assert response.error_code == ErrorCode.NONE
        assert s.loop.time() - before < 5
        assert s.one.controller.shrunk[-1] == (2, s.two.identity.broker_epoch, TOPIC)
        for source, target in cuts:
            s.loop.network.faults.restore(getattr(s, source).host, getattr(s, target).host)


@simulated(ForwardingBrokers, SEEDS)
async def test_a_request_is_relayed_once(s: ForwardingBrokers) -> None:
    """Brokers 2 and 3 both believe in the other one; the request does not go round."""
    s.elect(s.one)
    s.elect(s.two, known_to=[s.three])
    s.elect(s.three, known_to=[s.two])
    s.elect(s.one, known_to=[])
    asked = shrink(s.two)
    await asyncio.sleep(3)
    assert s.one.controller.shrunk == []
    assert s.two.peers.stats.requests_without_response == 0
    s.elect(s.one)
    assert (await asked).error_code == ErrorCode.NONE


@simulated(ForwardingBrokers, SEEDS)
async def test_a_controller_that_is_slow_gets_the_request_twice_and_its_first_response_counts(
    s: ForwardingBrokers,
) -> None:
    s.one.controller.delay_s = 4.0
    before = s.loop.time()
    assert (await shrink(s.two)).error_code == ErrorCode.NONE
    assert 4 <= s.loop.time() - before < 5
    await asyncio.sleep(10)
    assert len(s.one.controller.shrunk) == 2
