"""Access of the commands to brokers. The errors of clients leave this module as CliError."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ECONNREFUSED
from typing import TypeVar

from kbroker.cli.common.errors import CliError, exception_text, usage_error
from kbroker.cli.common.output import print_note
from kbroker.cli.common.values import TopicPartitions, parse_host_port
from kbroker.client.cluster import ClusterClient, UnknownBroker
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.requests import MAX_VERSIONS, Address, BrokerError, Partition
from kbroker.client.security import current_security
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode, MalformedError, error_name
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)

CLIENT_ID = "kbroker-cli"
# A command says what it waits for after this time.
SILENT_FOR_S = 1.5
# What kbroker.client raises.
CLIENT_ERRORS = (BrokerUnreachable, BrokerError, UnknownBroker, UnsupportedVersionError, MalformedError)


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """Parse `HOST:PORT,...`. Raises CliError."""
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise usage_error("--bootstrap is empty")
    return [parse_host_port(server, "--bootstrap") for server in servers]


@contextmanager
def _reachable(bootstrap: str) -> Iterator[None]:
    """Say what the command waits for, and what to do if no broker can be reached."""
    note = threading.Timer(SILENT_FOR_S, print_note, [f"waiting for {bootstrap} to respond"])
    note.daemon = True
    note.start()
    try:
        yield
    except BrokerUnreachable as error:
        hint = "start a broker with: kbroker start" if os.strerror(ECONNREFUSED) in str(error) else None
        raise CliError(str(error), hint=hint) from None
    finally:
        note.cancel()


@contextmanager
def admin_client(bootstrap: str, max_versions: Mapping[int, int] = MAX_VERSIONS) -> Iterator[ClusterClient]:
    """Connect to a cluster. Raises CliError if no bootstrap broker can be reached, and for the client's errors."""
    with ClusterClient(
        parse_bootstrap(bootstrap), client_id=CLIENT_ID, security=current_security(), max_versions=max_versions
    ) as cluster:
        try:
            with _reachable(bootstrap):
                cluster.any_broker()
            yield cluster
        except CLIENT_ERRORS as error:
            raise CliError(client_error_text(error)) from error


def client_error_text(error: Exception) -> str:
    """Return the message of an exception of CLIENT_ERRORS, or of a CliError."""
    if isinstance(error, BrokerError):
        return f"{error.subject}: {error_code_text(error.code, error.message)}"
    if isinstance(error, BrokerUnreachable) and error.address:
        return f"no response from {error.address}: {exception_text(error)}"
    return exception_text(error)


def error_code_text(code: int, message: str | None = None) -> str:
    """Return the broker's error message, or the meaning of its code, followed by the code's name."""
    name = error_name(code)
    return f"{message.rstrip('.')} ({name})" if message else name.replace("_", " ").capitalize() + f" ({name})"


def raise_error(code: int, message: str | None = None, subject: str = "") -> None:
    """Raise CliError for an error code, with the subject before its text."""
    if code:
        raise CliError(subject + error_code_text(code, message))


def topic_error(topic: str, code: int, message: str | None = None) -> CliError:
    """Return the error for a code about a topic."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return CliError(f"topic {topic} does not exist", code=error_name(code))
    return CliError(f"topic {topic}: {error_code_text(code, message)}")


def request_if_known(client: ClusterClient, request: Message, response_type: type[M]) -> M | None:
    """Send a request of kbroker to any broker. Returns None if there is no response, as from Apache Kafka."""
    try:
        return client.request(request, response_type)
    except CLIENT_ERRORS:
        return None


def partition_leaders(client: ClusterClient, topics: Sequence[str] | None) -> dict[Partition, int]:
    """Return leader ids (-1 for none) by partition, of these topics or of all. Raises CliError for a missing topic."""
    if topics is not None and not topics:
        return {}
    from kbroker.client.admin import describe_topics  # imported here to keep `produce` and completion fast

    leaders: dict[Partition, int] = {}
    for topic in describe_topics(client, topics):
        if topic.error_code:
            raise topic_error(topic.name, topic.error_code)
        leaders.update({(topic.name, row.partition_index): row.leader_id for row in topic.partitions})
    return leaders


def select_partitions(leaders: Mapping[Partition, int], selections: Sequence[TopicPartitions]) -> dict[Partition, int]:
    """Return the selected partitions with their leaders. Without a selection, returns all partitions.

    Raises CliError for a partition that its topic does not have.
    """
    for topic, partitions in selections:
        for partition in partitions or ():
            if (topic, partition) not in leaders:
                count = sum(name == topic for name, _ in leaders)
                raise CliError(f"topic {topic} has no partition {partition}: it has {count}")
    return {
        partition: leader
        for partition, leader in leaders.items()
        if not selections or any(selection.includes(*partition) for selection in selections)
    }
