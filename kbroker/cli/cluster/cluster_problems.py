"""What a broker knows of the cluster's problems, for `kbroker cluster status` and `kbroker doctor`."""

from typing import Any, NamedTuple

from kbroker.cli.cluster.plans.broker_message import send_message
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.output import print_note
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse


class ClusterProblems(NamedTuple):
    """The ids of brokers that cannot write to their disks, and of those that could not until recently.

    `recovering`: how many partitions have no leader because the metadata are older than the logs.
    """

    failing: list[int]
    on_probation: list[int]
    recovering: int


def read_problems(client: Any) -> ClusterProblems:
    """Return what a broker knows; nothing if it is one of Apache Kafka."""
    from kafka.errors import KafkaError

    try:
        response = send_message(client, DescribeBrokerRequest(), DescribeBrokerResponse)
    except KafkaError:
        return ClusterProblems([], [], 0)
    return ClusterProblems(response.failing_brokers, response.brokers_on_probation, response.recovering_partitions)


def print_problems(problems: ClusterProblems) -> None:
    for broker in problems.failing:
        print_note(f"broker {broker} cannot write to its disk: other brokers lead, where one is in sync")
    for broker in problems.on_probation:
        print_note(f"broker {broker} can write to its disk again, and gets its roles back soon")
    if problems.recovering:
        print_note(
            f"{count_text(problems.recovering, 'partition')} without a leader: the coordination service was restored "
            "from an older copy, and the logs of all replicas are compared first. Start the brokers that are away; "
            "docs/cluster.md says how to go on without them."
        )
