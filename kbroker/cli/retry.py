"""`kbroker retry`: create and list the retry topics, which store the policies of topics and groups."""

import dataclasses
from typing import Annotated

import typer

from kbroker.cli.common.client import admin_client, partition_leaders, topic_error
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import Cell, print_rows, watchable
from kbroker.cli.common.values import INT32, parse_duration_ms
from kbroker.client.admin import TopicSpec, create_topics, describe_topics, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.config.definitions.topic import TOPIC_CONFIGS
from kbroker.config.queue_configs import DEAD_LETTER_ENABLE, DEFAULT_ATTEMPTS, RETRY_LADDER_MS, RETRY_TOPIC
from kbroker.retry.policy import PolicyError, RetryPolicy
from kbroker.units import DURATION_UNITS_MS
from protocol.errors import ErrorCode

app = typer.Typer()

DELAY_ENABLE = "kbroker.delay.enable"
# A failed record has more headers than the original, which may be as large as its topic allows.
EXTRA_HEADER_BYTES = 16 << 10


@app.command("create")
def create(
    topic: Annotated[str, argument("TOPIC", "Topic whose records are retried.", complete=complete_topics)],
    group: Annotated[str, option("--group -g GROUP", "Group that reads the topic.", complete=complete_groups)],
    attempts: Annotated[
        int | None,
        option(
            "--attempts N",
            "How many times a record is processed, the first time included.",
            show_default="one more than --delays",
        ),
    ] = None,
    delays: Annotated[
        str | None,
        option(
            "--delays DURATION,...",
            "The delay before each retry; the last one repeats.",
            show_default="10s,30s,1m,2m,...,10m,20m,30m,1h,2h",
        ),
    ] = None,
    retry_topic: Annotated[
        str | None, option("--retry-topic TOPIC", "Name of the retry topic.", show_default="TOPIC-GROUP-retry")
    ] = None,
    dead_letter_topic: Annotated[
        str | None, option("--dead-letter-topic TOPIC", "Name of the dead-letter topic.", show_default="dlq.TOPIC")
    ] = None,
    partitions: Annotated[
        int | None,
        option(
            "--partitions -p N", "Number of partitions of both topics.", min=1, max=INT32, show_default="those of TOPIC"
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create the retry topic of a topic and a group, which stores the retry policy.

    The dead-letter topic is created as well if it does not exist.

    Example: kbroker retry create orders --group billing --attempts 4 --delays 10s,1m,10m
    """
    delays_ms = RETRY_LADDER_MS if delays is None else tuple(parse_duration_ms(text) for text in delays.split(","))
    attempts = attempts if attempts is not None else DEFAULT_ATTEMPTS if delays is None else len(delays_ms) + 1
    try:
        policy = RetryPolicy(topic, group, attempts, delays_ms, retry_topic or "", dead_letter_topic or "")
    except PolicyError as error:
        raise usage_error(str(error)) from None
    with admin_client(bootstrap) as client:
        count = partitions or len(partition_leaders(client, [topic]))
        size = int(topic_configs(client, [topic])[topic]["max.message.bytes"]) + EXTRA_HEADER_BYTES
        common = {"max.message.bytes": str(min(size, INT32))}
        delay = {DELAY_ENABLE: "true"} if DELAY_ENABLE in TOPIC_CONFIGS else {}
        dead_letters = {**common, DEAD_LETTER_ENABLE: "true"}
        retries = {**common, **policy.to_configs(), **delay}
        # A refused policy leaves no dead-letter topic.
        _create_topic(client, policy.retry_topic, count, retries, validate_only=True)
        if _create_topic(client, policy.dead_letter_topic, count, dead_letters, exists_ok=True):
            print(f"{policy.dead_letter_topic}: created")
        else:
            _require_dead_letter_topic(client, policy.dead_letter_topic)
        _create_topic(client, policy.retry_topic, count, retries)
        print(f"{policy.retry_topic}: created")


def _require_dead_letter_topic(client: ClusterClient, topic: str) -> None:
    if topic_configs(client, [topic])[topic].get(DEAD_LETTER_ENABLE) != "true":
        raise CliError(
            f"{topic} is not a dead-letter topic: {DEAD_LETTER_ENABLE} is not true "
            f"(kbroker topics alter {topic} --set {DEAD_LETTER_ENABLE}=true makes it one)"
        )


def _create_topic(
    client: ClusterClient,
    name: str,
    partitions: int,
    configs: dict[str, str],
    *,
    exists_ok: bool = False,
    validate_only: bool = False,
) -> bool:
    """Create a topic; returns False if it exists and may exist."""
    [result] = create_topics(client, {name: TopicSpec(partitions, configs=configs)}, validate_only=validate_only)
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and exists_ok:
        return False
    if result.error_code:
        raise topic_error(name, result.error_code, result.error_message)
    return True


def topics_with_configs(client: ClusterClient) -> dict[str, dict[str, str]]:
    """Return the configs of all topics, by topic."""
    return topic_configs(client, sorted(topic.name for topic in describe_topics(client)))


@app.command("list")
@watchable
def list_policies(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List the retry policies that retry topics store."""
    with admin_client(bootstrap) as client:
        configs = topics_with_configs(client)
    policies = [RetryPolicy.from_configs(topic, values) for topic, values in configs.items() if values.get(RETRY_TOPIC)]
    columns = ("topic", "group", "attempts", "delays", "retry_topic", "dead_letter_topic")
    rows: list[list[Cell]] = [
        [p.topic, p.group, p.attempts, ",".join(map(duration_text, p.delays_ms)), p.retry_topic, p.dead_letter_topic]
        for p in policies
    ]
    print_rows(as_json, [dataclasses.asdict(policy) for policy in policies], columns, rows)


def duration_text(duration_ms: int) -> str:
    """Return a duration in its largest whole unit: 90s, 2h."""
    units = sorted(DURATION_UNITS_MS.items(), key=lambda item: -item[1])
    return next(f"{duration_ms // ms}{unit}" for unit, ms in units if duration_ms % ms == 0 and unit not in ("w",))
