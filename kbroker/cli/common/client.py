"""Connections to a broker through kafka-python, whose failures leave here as CliError."""

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from kbroker.cli.common.errors import CliError, explain
from kbroker.cli.common.values import host_port
from protocol.errors import ErrorCode

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECT_TIMEOUT_S = 5.0
BOOTSTRAP_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000

_CLIENT_ERROR = re.compile(r"\[Error (-?\d+)\] \w+(?:: (.*))?", re.DOTALL)

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="KBROKER_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster, or several: A:9092,B:9092.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def common(bootstrap: str) -> dict[str, Any]:
    """The settings of all three clients, after making sure that somebody listens.

    kafka-python itself would retry a refused connection until its timeout, without a word.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    if not servers:
        raise CliError("--bootstrap is empty", status=2)
    refusals = []
    for server in servers:
        host, port = host_port(server, "--bootstrap")
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            break
        except OSError as error:
            refusals.append(f"{server}: {explain(error)}")
    else:
        raise CliError(f"cannot connect to {'; '.join(refusals)} (start a broker with: kbroker start)")
    return {
        "bootstrap_servers": servers,
        "client_id": "kbroker-cli",
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }


@contextmanager
def admin(bootstrap: str) -> Iterator[Any]:
    """A kafka.admin.KafkaAdminClient, closed at the end."""
    settings = common(bootstrap)
    from kafka.admin import KafkaAdminClient

    with client_errors():
        client = KafkaAdminClient(**settings)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def client_errors() -> Iterator[None]:
    """Turns what kafka-python raises into a CliError that a user can act on."""
    from kafka.errors import KafkaError

    try:
        yield
    except (
        KafkaError,
        AssertionError,
        TypeError,
        ValueError,
    ) as error:  # the latter: how it checks arguments
        raise CliError(told(error)) from error


def told(error: BaseException) -> str:
    """A failure of kafka-python in words, without its class names where there are better ones."""
    from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

    detail = ": ".join(str(arg) for arg in error.args if arg is not None)
    if isinstance(error, BrokerResponseError):
        return refusal(error.errno, detail)
    if isinstance(error, KafkaTimeoutError):
        return f"no answer in time: {detail}"
    return detail if detail and not isinstance(error, KafkaError) else explain(error)


def refusal(code: int, message: str | None = None) -> str:
    """A broker's error in words: what it wrote, or what the code stands for, and the code's name."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    return f"{message.rstrip('.')} ({name})" if message else name.replace("_", " ").capitalize() + f" ({name})"


def reworded(text: str) -> str:
    """A broker's error that kafka-python gives as text, `[Error 40] InvalidConfigurationError: reason`."""
    match = _CLIENT_ERROR.fullmatch(text)
    return refusal(int(match[1]), match[2]) if match else text


def send(client: Any, request: Any, node: int | None = None) -> Any:
    """The answer to a request that kafka-python's admin client has no (good) method for; from any broker, or one."""
    from kafka.errors import UnknownBrokerIdError

    async def answer() -> Any:
        return await client._manager.send(request, node_id=node)

    try:
        return client._manager.run(answer)
    except UnknownBrokerIdError:
        raise CliError(f"there is no broker {node}") from None


def partitions_of(client: Any, topics: list[str]) -> dict[str, list[int]]:
    """The partitions of existing topics; raises CliError for one that does not exist."""
    found: dict[str, list[int]] = {}
    for topic in client.describe_topics(topics) if topics else []:
        if topic["error_code"]:
            raise CliError(topic_refusal(topic["name"], topic["error_code"]))
        found[topic["name"]] = sorted(partition["partition_index"] for partition in topic["partitions"])
    return found


def committed_offsets(client: Any, group: str) -> dict[Any, int]:
    """What a group has committed, by kafka.TopicPartition."""
    return {tp: at.offset for tp, at in client.list_group_offsets(group)[group].items() if at.offset >= 0}


def topic_refusal(topic: str, code: int, message: str | None = None) -> str:
    """As `refusal`, with the topic's name, and plain words for the one that people meet most."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {topic} does not exist"
    return f"topic {topic}: {refusal(code, message)}"
