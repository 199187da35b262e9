"""Access of the commands to brokers. The errors of clients leave this module as CliError.

Commands that produce or consume use kafka-python. It is imported where it is used: loading it takes longer than most
commands run.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ECONNREFUSED
from typing import Any, TypeVar

from kbroker.cli.common.errors import CliError, exception_text, usage_error
from kbroker.cli.common.output import print_note
from kbroker.cli.common.values import TopicPartitions, parse_host_port
from kbroker.client.admin import describe_topics
from kbroker.client.cluster import ClusterClient, UnknownBroker, require_reachable
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.key_stores import KeyStoreError
from kbroker.client.oauth import retrieve_token
from kbroker.client.requests import Address, BrokerError, Partition
from kbroker.client.security import NO_SECURITY, current_security, tls_context
from kbroker.common import TokenSource
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode, error_name
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)

CLIENT_ID = "kbroker-cli"
BOOTSTRAP_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000
# A command says what it waits for after this time.
SILENT_FOR_S = 1.5
# What kbroker.client raises.
CLIENT_ERRORS = (BrokerUnreachable, BrokerError, UnknownBroker, UnsupportedVersionError)


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
        hint = " (start a broker with: kbroker start)" if os.strerror(ECONNREFUSED) in str(error) else ""
        raise CliError(f"{error}{hint}") from None
    finally:
        note.cancel()


@contextmanager
def admin_client(bootstrap: str) -> Iterator[ClusterClient]:
    """Connect to a cluster. Raises CliError if no bootstrap broker can be reached, and for the client's errors."""
    with ClusterClient(parse_bootstrap(bootstrap), client_id=CLIENT_ID, security=current_security()) as cluster:
        try:
            with _reachable(bootstrap):
                cluster.any_broker()
            yield cluster
        except CLIENT_ERRORS as error:
            raise CliError(client_error_text(error)) from error


def client_settings(bootstrap: str) -> dict[str, Any]:
    """Return settings for kafka-python's clients; raises CliError if no bootstrap broker accepts a connection."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    addresses = parse_bootstrap(bootstrap)
    with _reachable(bootstrap):
        require_reachable(addresses)
    return _security_settings() | {
        "bootstrap_servers": [server.strip() for server in bootstrap.split(",") if server.strip()],
        "client_id": CLIENT_ID,
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }


def _security_settings() -> dict[str, Any]:
    """Return the security settings of kafka-python's clients. Raises CliError."""
    security = current_security()
    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.mechanism:
        settings |= {"sasl_mechanism": security.mechanism}
    if security.tokens is not None:
        settings |= {"sasl_oauth_token_provider": _token_provider(security.tokens)}
    elif security.mechanism:
        settings |= {"sasl_plain_username": security.user, "sasl_plain_password": security.password}
    if security.has_tls:
        try:
            settings["ssl_context"] = tls_context(security)
        except KeyStoreError as error:
            raise CliError(str(error)) from None
    return settings if security != NO_SECURITY else {}


def _token_provider(source: TokenSource) -> object:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return retrieve_token(source)

    return TokenProvider()


@contextmanager
def kafka_python_errors() -> Iterator[None]:
    """Raise exceptions of kafka-python as CliError."""
    from kafka.errors import KafkaError

    try:
        yield
    except (KafkaError, AssertionError, TypeError, ValueError) as error:
        # kafka-python validates arguments with assertions and with the built-in exceptions.
        raise CliError(kafka_python_error_text(error)) from error


def kafka_python_error_text(error: BaseException) -> str:
    """Return the message of an exception of kafka-python. Class names are used only if there is no message."""
    from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

    detail = ": ".join(str(arg) for arg in error.args if arg is not None)
    if isinstance(error, BrokerResponseError):
        return error_code_text(error.errno, detail)
    if isinstance(error, KafkaTimeoutError):
        return f"timed out: {detail}"
    return detail if detail and not isinstance(error, KafkaError) else exception_text(error)


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


def topic_error_text(topic: str, code: int, message: str | None = None) -> str:
    """Return the text of an error about a topic."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {topic} does not exist"
    return f"topic {topic}: {error_code_text(code, message)}"


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
    leaders: dict[Partition, int] = {}
    for topic in describe_topics(client, topics):
        if topic.error_code:
            raise CliError(topic_error_text(topic.name, topic.error_code))
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
