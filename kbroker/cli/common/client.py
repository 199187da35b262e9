"""Access of the commands to brokers. The errors of clients leave this module as CliError."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ECONNREFUSED
from time import monotonic
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
REPEAT_NOTE_S = 20.0
# A message of Kafka's brokers and of kbroker's. Those about broker configs have a suggestion of kbroker.
_UNKNOWN_CONFIG = re.compile(r"Unknown (?P<kind>topic|group) config name: (?P<name>\S+)")
# What kbroker.client raises.
CLIENT_ERRORS = (BrokerUnreachable, BrokerError, UnknownBroker, UnsupportedVersionError, MalformedError)


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """Parse `HOST:PORT,...`. Raises CliError."""
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise usage_error("--bootstrap is empty")
    return [parse_host_port(server, "--bootstrap") for server in servers]


def wait_notes() -> Callable[[str], None]:
    """Return what prints the reason of a wait, the same one a few times a minute at most."""
    printed: dict[str, float] = {}

    def note(reason: str) -> None:
        now_s = monotonic()
        if now_s - printed.get(reason, float("-inf")) > REPEAT_NOTE_S:
            printed[reason] = now_s
            print_note(f"waiting: {reason}")

    return note


@contextmanager
def admin_client(bootstrap: str, max_versions: Mapping[int, int] = MAX_VERSIONS) -> Iterator[ClusterClient]:
    """Connect to a cluster. Raises CliError if no bootstrap broker can be reached, and for the client's errors."""
    with ClusterClient(
        parse_bootstrap(bootstrap),
        client_id=CLIENT_ID,
        security=current_security(),
        max_versions=max_versions,
        on_wait=wait_notes(),
    ) as cluster:
        try:
            cluster.any_broker()
        except BrokerUnreachable as error:
            hint = "start a broker with: kbroker start" if os.strerror(ECONNREFUSED) in str(error) else None
            raise CliError(str(error), hint=hint) from None
        try:
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
    """Return the broker's error message, or the meaning of its code, followed by the code's name.

    An unknown config has a suggestion.
    """
    name = error_name(code)
    if unknown := _UNKNOWN_CONFIG.fullmatch(message or ""):
        # Only now, because definitions of configs take long.
        from difflib import get_close_matches

        from kbroker.config.definitions.group import GROUP_CONFIGS
        from kbroker.config.definitions.topic import TOPIC_CONFIGS

        known = TOPIC_CONFIGS if unknown["kind"] == "topic" else GROUP_CONFIGS
        # A broker config such as log.retention.ms, or a similar name.
        near = [name for name in known if unknown["name"].endswith(f".{name}")]
        near = near or get_close_matches(unknown["name"], known, 1, 0.5)
        message = f"{message} (did you mean {near[0]}?)" if near else message
    elif code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        message = message or "the name of a topic has 1 to 249 letters, digits, '.', '_' and '-'"
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
    from kbroker.client.admin import describe_topics

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
