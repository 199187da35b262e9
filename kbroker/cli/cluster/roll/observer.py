"""Reads the state of a cluster from its brokers, over a new connection each time, since they restart meanwhile."""

import socket
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from kbroker.cli.cluster.roll.cluster_view import BrokerAddress, BrokerProcess, ClusterView
from kbroker.cli.common.client import admin_client, read_again
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.partitions.partition_health import PartitionHealth, min_isr_by_topic
from protocol.client import ClientConnection
from protocol.errors import MalformedError
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)

# A broker that does not respond within this time counts as away.
TIMEOUT_S = 5.0
READ_BYTES = 256 << 10
METADATA_VERSION, DESCRIBE_CLUSTER_VERSION, DESCRIBE_BROKER_VERSION = 9, 2, 0


class Observer:
    """Knows the brokers from the first connection on, and learns of others."""

    def __init__(self, bootstrap: str) -> None:
        """Find the brokers. Raises CliError if none can be reached."""
        self._brokers: dict[int, BrokerAddress] = {}
        self._min_isr: dict[str, int] = {}
        with admin_client(bootstrap) as client:
            found: Any = read_again(client.describe_cluster)
        for broker in found["brokers"]:
            self._brokers[broker["broker_id"]] = BrokerAddress(broker["host"], broker["port"], broker["rack"])

    def read(self, ask_first: Iterable[int] = ()) -> ClusterView | None:
        """Return the state of the cluster, None if no broker responds to all requests.

        The state of the partitions is what the first broker of `ask_first` says that responds. One that was restarted
        has read them since then, while another may not know yet that its replicas have left the ISR.
        """
        processes = {broker: process for broker in self._brokers if (process := self._process(broker)) is not None}
        order = [*(broker for broker in ask_first if broker in processes), *processes]
        for broker in dict.fromkeys(order):
            try:
                cluster = self._ask(
                    broker, DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse
                )
                metadata = self._ask(
                    broker, MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse
                )
            except OSError:
                continue
            self._brokers = {
                known.broker_id: BrokerAddress(known.host, known.port, known.rack) for known in cluster.brokers
            }
            return ClusterView(
                cluster.controller_id, dict(sorted(self._brokers.items())), processes, self._partitions(metadata)
            )
        return None

    def _process(self, broker: int) -> BrokerProcess | None:
        try:
            found = self._ask(broker, DescribeBrokerRequest(), DescribeBrokerResponse)
        except OSError:
            return None
        # Another broker may have its address now.
        if found.broker_id != broker:
            return None
        return BrokerProcess(found.broker_epoch, found.started_ms, found.software_version)

    def _partitions(self, metadata: MetadataResponse) -> dict[Partition, PartitionHealth]:
        topics = [topic for topic in metadata.topics if not topic.error_code and topic.name]
        self._read_min_isr([topic.name for topic in topics if topic.name and topic.name not in self._min_isr])
        return {
            (topic.name or "", row.partition_index): PartitionHealth(
                row.leader_id, row.replica_nodes, row.isr_nodes, self._min_isr.get(topic.name or "", 1)
            )
            for topic in topics
            for row in topic.partitions
        }

    def _read_min_isr(self, topics: list[str]) -> None:
        """Read min.insync.replicas of topics. Raises CliError at the first time; later ones are repeated anyway."""
        if not topics:
            return
        bootstrap = ",".join(map(str, self._brokers.values()))
        with suppress(CliError) if self._min_isr else nullcontext(), admin_client(bootstrap) as client:
            self._min_isr |= min_isr_by_topic(client, topics)

    def _ask(self, broker: int, request: Message, response_type: type[M]) -> M:
        """Send one request to a broker and return the response. Raises OSError."""
        address = self._brokers[broker]
        client = ClientConnection("kbroker-cli")
        with socket.create_connection((address.host, address.port), TIMEOUT_S) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.sendall(client.send(request, _VERSIONS[type(request)]).frame)
            try:
                while (response := client.next_response()) is None:
                    data = connection.recv(READ_BYTES)
                    if not data:
                        raise ConnectionResetError("the broker closed the connection")
                    client.receive(data)
                return response.decode(response_type)
            except MalformedError as error:
                raise ConnectionError(str(error)) from None


_VERSIONS: dict[type[Message], int] = {
    MetadataRequest: METADATA_VERSION,
    DescribeClusterRequest: DESCRIBE_CLUSTER_VERSION,
    DescribeBrokerRequest: DESCRIBE_BROKER_VERSION,
}


def first_view(observer: Observer) -> ClusterView:
    """Return the state of the cluster. Raises CliError for brokers of another program, which do not report starts."""
    view = observer.read()
    if view is None:
        raise CliError("these brokers do not report when they were started: only those of kbroker do")
    return view
