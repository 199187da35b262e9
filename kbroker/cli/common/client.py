"""Access to brokers through kafka-python. Its exceptions leave this module as CliError.

kafka-python is imported where it is used: loading it takes longer than most commands run.
"""

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kbroker.cli.common.errors import CliError, exception_text, usage_error
from kbroker.cli.common.parsing import TopicPartitions, parse_host_port
from protocol.errors import ErrorCode, error_name

CONNECT_TIMEOUT_S = 5.0
BOOTSTRAP_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000
READ_AGAIN_S, READ_AGAIN_EVERY_S = 10.0, 0.1

Item = TypeVar("Item")

_CLIENT_ERROR = re.compile(r"\[Error (-?\d+)\] \w+(?:: (.*))?", re.DOTALL)


def client_settings(bootstrap: str) -> dict[str, Any]:
    """Return settings for kafka-python's clients; raises CliError if no bootstrap broker accepts a connection.

    Without that check kafka-python would retry a refused connection silently until its timeout.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise usage_error("--bootstrap is empty")
    _require_reachable(servers)
    return {
        "bootstrap_servers": servers,
        "client_id": "kbroker-cli",
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }


def _require_reachable(servers: Sequence[str]) -> None:
    errors = []
    for server in servers:
        host, port = parse_host_port(server, "--bootstrap")
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            errors.append(f"{server}: {exception_text(error)}")
    raise CliError(f"cannot connect to {'; '.join(errors)} (start a broker with: kbroker start)")


@contextmanager
def admin_client(bootstrap: str) -> Iterator[Any]:
    """Open a kafka.admin.KafkaAdminClient and close it at the end."""
    settings = client_settings(bootstrap)
    from kafka.admin import KafkaAdminClient

    with client_errors():
        client = KafkaAdminClient(**settings)
        try:
            yield client
        finally:
            client.close()


def read_again(call: Callable[[], Item]) -> Item:
    """Return the result of a call that only reads. It is repeated while the broker that was asked cannot be reached.

    kafka-python asks any broker, also one that was just killed, and avoids that one for some time afterwards.
    """
    from kafka.errors import KafkaConnectionError, NodeNotReadyError

    deadline = time.monotonic() + READ_AGAIN_S
    while True:
        try:
            return call()
        except (KafkaConnectionError, NodeNotReadyError):
            if time.monotonic() > deadline:
                raise
            time.sleep(READ_AGAIN_EVERY_S)


@contextmanager
def client_errors() -> Iterator[None]:
    """Raise exceptions of kafka-python as CliError."""
    from kafka.errors import KafkaError

    try:
        yield
    except (KafkaError, AssertionError, TypeError, ValueError) as error:
        # kafka-python validates arguments with assertions and with the built-in exceptions.
        raise CliError(client_error_text(error)) from error


def client_error_text(error: BaseException) -> str:
    """Return the message of an exception of kafka-python. Class names are used only if there is no message."""
    from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

    detail = ": ".join(str(arg) for arg in error.args if arg is not None)
    if isinstance(error, BrokerResponseError):
        return error_code_text(error.errno, detail)
    if isinstance(error, KafkaTimeoutError):
        return f"timed out: {detail}"
    return detail if detail and not isinstance(error, KafkaError) else exception_text(error)


def error_code_text(code: int, message: str | None = None) -> str:
    """Return the broker's error message, or the meaning of its code, followed by the code's name."""
    name = error_name(code)
    return f"{message.rstrip('.')} ({name})" if message else name.replace("_", " ").capitalize() + f" ({name})"


def topic_error_text(topic: str, code: int, message: str | None = None) -> str:
    """Return the text of an error about a topic."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {topic} does not exist"
    return f"topic {topic}: {error_code_text(code, message)}"


def rephrase_client_error(text: str) -> str:
    """Rewrite an error that kafka-python returns as text, `[Error 40] InvalidConfigurationError: reason`."""
    match = _CLIENT_ERROR.fullmatch(text)
    return error_code_text(int(match[1]), match[2]) if match else text


def send_request(client: Any, request: Any, broker_id: int | None = None, timeout_ms: int | None = None) -> Any:
    """Send a request that kafka-python's admin client has no method for and return its response.

    Without `broker_id` any broker may respond. Without `timeout_ms` it has REQUEST_TIMEOUT_MS. kafka-python has no
    public method for this.
    """
    from kafka.errors import UnknownBrokerIdError

    async def send() -> Any:
        return await client._manager.send(request, node_id=broker_id, request_timeout_ms=timeout_ms)

    try:
        return client._manager.run(send)
    except UnknownBrokerIdError:
        raise CliError(f"there is no broker {broker_id}") from None


def send_to_brokers(client: Any, requests: Sequence[tuple[int, Any]], timeout_ms: int) -> list[tuple[int, Any]]:
    """Send requests to the brokers with these ids, all at once, and return the responses that arrive in time."""
    from kafka.errors import KafkaError

    async def send_all() -> list[tuple[int, Any]]:
        manager, sent, responses = client._manager, [], []
        for broker, request in requests:
            try:
                sent.append((broker, manager.send(request, broker, timeout_ms)))
            except KafkaError:  # not among the brokers that clients know
                continue
        for broker, future in sent:
            try:
                responses.append((broker, await manager.wait_for(future, timeout_ms)))
            except KafkaError:
                continue
        return responses

    found: list[tuple[int, Any]] = client._manager.run(send_all)
    return found


def partition_leaders(client: Any, topics: Sequence[str] | None) -> dict[tuple[str, int], int]:
    """Return leader ids (-1 for none) by partition, of these topics or of all. Raises CliError for a missing topic."""
    if topics is not None and not topics:
        return {}
    leaders: dict[tuple[str, int], int] = {}
    for topic in client.describe_topics(None if topics is None else list(topics)):
        if topic["error_code"]:
            raise CliError(topic_error_text(topic["name"], topic["error_code"]))
        for row in topic["partitions"]:
            leaders[topic["name"], row["partition_index"]] = row["leader_id"]
    return leaders


def select_partitions(
    leaders: Mapping[tuple[str, int], int], selections: Sequence[TopicPartitions]
) -> dict[tuple[str, int], int]:
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


def committed_offsets(client: Any, group: str) -> dict[Any, int]:
    """Return the committed offsets of a group by kafka.TopicPartition."""
    return {tp: at.offset for tp, at in client.list_group_offsets(group)[group].items() if at.offset >= 0}


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Split items into sequences of at most `size`, for several requests."""
    return [items[start : start + size] for start in range(0, len(items), size)]
