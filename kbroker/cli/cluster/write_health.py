"""The brokers that cannot write to their disks, for `kbroker cluster status` and `kbroker doctor`."""

from typing import Any, NamedTuple

from kbroker.cli.cluster.plans.broker_message import send_message
from kbroker.cli.common.output import print_note
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse


class ClusterWriteHealth(NamedTuple):
    """The ids of brokers that cannot write to their disks, and of those that could not until recently."""

    failing: list[int]
    on_probation: list[int]


def read_write_health(client: Any) -> ClusterWriteHealth:
    """Return what a broker knows about all of them; nothing if it is one of Apache Kafka."""
    from kafka.errors import KafkaError

    try:
        response = send_message(client, DescribeBrokerRequest(), DescribeBrokerResponse)
    except KafkaError:
        return ClusterWriteHealth([], [])
    return ClusterWriteHealth(response.failing_brokers, response.brokers_on_probation)


def print_write_health(health: ClusterWriteHealth) -> None:
    for broker in health.failing:
        print_note(f"broker {broker} cannot write to its disk: other brokers lead, where one is in sync")
    for broker in health.on_probation:
        print_note(f"broker {broker} can write to its disk again, and gets its roles back soon")
