"""`kbroker retry`: create and list the retry topics, which store the policies of topics and groups."""

import dataclasses
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, chunks, partition_leaders, topic_error_text
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import Cell, print_json, print_table
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.parsing import DURATION_UNITS_MS, INT32, parse_duration_ms
from kbroker.config.definitions.retry import (
    DEAD_LETTER_ENABLE,
    DEFAULT_ATTEMPTS,
    RETRY_LADDER_MS,
    RETRY_TOPIC,
)
from kbroker.config.definitions.topic import TOPIC_CONFIGS
from kbroker.retry.policy import PolicyError, RetryPolicy
from protocol.errors import ErrorCode

app = typer.Typer()

DELAY_ENABLE = "kbroker.delay.enable"
MAX_RESOURCES = 500  # per DescribeConfigs
# A failed record has more headers than the original, which may be as large as its topic allows.
EXTRA_HEADER_BYTES = 16 << 10


@app.command("create")
def create(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", show_default=False, autocompletion=complete_topics, help="Topic whose records are retried."
        ),
    ],
    group: Annotated[
        str,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Group that reads the topic.", autocompletion=complete_groups
        ),
    ],
    attempts: Annotated[
        int | None,
        typer.Option(
            "--attempts",
            metavar="N",
            help="How many times a record is processed, the first time included.",
            show_default="one more than --delays",
        ),
    ] = None,
    delays: Annotated[
        str | None,
        typer.Option(
            "--delays",
            metavar="DURATION,...",
            help="The delay before each retry; the last one repeats.",
            show_default="10s,30s,1m,2m,...,10m,20m,30m,1h,2h",
        ),
    ] = None,
    retry_topic: Annotated[
        str | None,
        typer.Option(
            "--retry-topic", metavar="TOPIC", help="Name of the retry topic.", show_default="TOPIC-GROUP-retry"
        ),
    ] = None,
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-topic", metavar="TOPIC", help="Name of the dead-letter topic.", show_default="dlq.TOPIC"
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            max=INT32,
            help="Number of partitions of both topics.",
            show_default="those of TOPIC",
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
        size = int(_topic_configs(client, [topic])[topic]["max.message.bytes"] or 0) + EXTRA_HEADER_BYTES
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


def _require_dead_letter_topic(client: Any, topic: str) -> None:
    if _topic_configs(client, [topic])[topic].get(DEAD_LETTER_ENABLE) != "true":
        raise CliError(
            f"{topic} is not a dead-letter topic: {DEAD_LETTER_ENABLE} is not true "
            f"(kbroker topics alter {topic} --set {DEAD_LETTER_ENABLE}=true makes it one)"
        )


def _create_topic(
    client: Any,
    name: str,
    partitions: int,
    configs: dict[str, str],
    *,
    exists_ok: bool = False,
    validate_only: bool = False,
) -> bool:
    """Create a topic; returns False if it exists and may exist."""
    new_topic = {"num_partitions": partitions, "replication_factor": -1, "configs": configs}
    response = client.create_topics({name: new_topic}, raise_errors=False, validate_only=validate_only)
    [result] = response["topics"]
    if result["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS and exists_ok:
        return False
    if result["error_code"]:
        raise CliError(topic_error_text(name, result["error_code"], result["error_message"]))
    return True


def _topic_configs(client: Any, topics: list[str]) -> dict[str, dict[str, str | None]]:
    from kafka.admin import ConfigResource, ConfigResourceType

    configs: dict[str, dict[str, str | None]] = {}
    for chunk in chunks(topics, MAX_RESOURCES):
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in chunk]
        described = client.describe_configs(resources, config_filter="all")
        for topic, rows in next(iter(described.values())).items():
            configs[topic] = {name: row["value"] for name, row in rows.items()}
    return configs


def topics_with_configs(client: Any) -> dict[str, dict[str, str | None]]:
    """Return the configs of all topics, by topic."""
    return _topic_configs(client, sorted(topic["name"] for topic in client.describe_topics(None)))


@app.command("list")
@paginated
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
    if as_json:
        print_json([dataclasses.asdict(policy) for policy in policies])
    else:
        print_table(columns, rows)


def duration_text(duration_ms: int) -> str:
    """Return a duration in its largest whole unit: 90s, 2h."""
    units = sorted(DURATION_UNITS_MS.items(), key=lambda item: -item[1])
    return next(f"{duration_ms // ms}{unit}" for unit, ms in units if duration_ms % ms == 0 and unit not in ("w",))
