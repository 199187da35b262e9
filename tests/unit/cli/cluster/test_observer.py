"""What the command reads of brokers: over real sockets, from brokers that respond, disconnect or are away."""

from collections.abc import Callable, Iterator

import pytest

from kbroker.cli.cluster import roll_steps
from kbroker.cli.cluster.roll_steps import BrokerProcess, Observer, first_view
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import PartitionHealth
from protocol.apis import ApiKey
from protocol.messages.k03_metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from protocol.messages.k60_describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from protocol.messages.k10003_describe_broker import DescribeBrokerResponse
from tests.unit.support.socket_broker import SocketBroker


def metadata() -> MetadataResponse:
    row = MetadataResponsePartition(partition_index=0, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1])
    deleted = MetadataResponseTopic(error_code=3, name="deleted")
    return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[row]), deleted])


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Observer]]:
    """Start brokers 1, 2, ... with these responses to DescribeBroker, None for one that disconnects."""
    running: list[SocketBroker] = []
    monkeypatch.setattr(roll_steps, "min_isr_by_topic", lambda client, topics: dict.fromkeys(topics, 2))

    def start_brokers(*processes: DescribeBrokerResponse | None) -> Observer:
        known: list[DescribeClusterBroker] = []
        for number, process in enumerate(processes, 1):
            handlers = {
                ApiKey.METADATA: lambda _: metadata(),
                ApiKey.DESCRIBE_CLUSTER: lambda _: DescribeClusterResponse(controller_id=2, brokers=known),
                ApiKey.DESCRIBE_BROKER: lambda _, process=process: process,
            }
            running.append(SocketBroker(handlers))
            known.append(DescribeClusterBroker(broker_id=number, host="127.0.0.1", port=running[-1].port, rack="a"))
        return Observer(f"127.0.0.1:{running[0].port}")

    yield start_brokers
    for broker in running:
        broker.close()


def described(broker: int, epoch: int = 7) -> DescribeBrokerResponse:
    return DescribeBrokerResponse(broker_id=broker, broker_epoch=epoch, started_ms=1000, software_version="1.0")


def test_brokers_and_partitions(start: Callable[..., Observer]) -> None:
    view = first_view(start(described(1), described(2, -1)))
    assert view.controller == 2
    assert view.processes == {1: BrokerProcess(7, 1000, "1.0"), 2: BrokerProcess(-1, 1000, "1.0")}
    assert (view.brokers[1].host, view.brokers[1].rack) == ("127.0.0.1", "a")
    assert view.partitions == {("t", 0): PartitionHealth(1, [1, 2], [1], 2)}
    assert view.absent() == [2]


def test_a_broker_that_does_not_respond_is_away(start: Callable[..., Observer]) -> None:
    # The second one disconnects, and the third one is another broker at the address.
    view = first_view(start(described(1), None, described(1)))
    assert list(view.processes) == [1]
    assert view.absent() == [2, 3]


def test_brokers_of_another_program_are_refused(start: Callable[..., Observer]) -> None:
    with pytest.raises(CliError, match="do not report when they were started"):
        first_view(start(None, None))
