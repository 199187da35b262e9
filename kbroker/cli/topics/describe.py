"""`kbroker topics describe`: partitions with their replicas and offsets, of topics or with a problem."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, request_if_known, topic_error
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import Cell, print_heading, print_json, print_table, watchable
from kbroker.cli.common.partitions import (
    CONDITIONS,
    NO_REASSIGNMENT,
    PartitionHealth,
    ReplicaChanges,
    ReplicaLag,
    lag_text,
    min_isr_by_topic,
    partition_health,
    reassignments_if_known,
    replica_lag,
)
from kbroker.cli.common.values import count_text
from kbroker.cli.topics.archive_lag import ARCHIVE_TABLE, ArchiveLag, archive_lags
from kbroker.cli.topics.list_topics import VIEW_OF, topic_summary
from kbroker.client.admin import MetadataTopic, describe_topics, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import EARLIEST, LATEST, offsets_at_brokers, partitions_by_leader
from kbroker.client.requests import Partition
from protocol.messages.k03_metadata import MetadataResponsePartition
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse


def remove_partitions(client: ClusterClient, topic: str, partitions: int) -> RemovePartitionsResponse | None:
    """Return the response to the removal of partitions, or with -1 their state; None from a broker of Apache Kafka."""
    request = RemovePartitionsRequest(topic_name=topic, partition_count=partitions)
    return request_if_known(client, request, RemovePartitionsResponse)


def first_closing(client: ClusterClient, topic: str) -> int | None:
    """Return the lowest partition of a topic that is closing; None if none is, or the broker is Apache Kafka."""
    response = remove_partitions(client, topic, -1)
    return None if response is None or response.error_code or response.first_closing < 0 else response.first_closing


OptionalTopics = Annotated[list[str] | None, argument("[TOPIC]...", complete=complete_topics)]


def _filter(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=text)


@watchable
def describe(
    topics: OptionalTopics = None,
    under_replicated: Annotated[
        bool, _filter("under-replicated", "Only partitions with fewer in-sync replicas than replicas.")
    ] = False,
    at_min_isr: Annotated[
        bool, _filter("at-min-isr", "Only those that reject acks=all after the loss of one more replica.")
    ] = False,
    under_min_isr: Annotated[bool, _filter("under-min-isr", "Only those that reject acks=all.")] = False,
    offline: Annotated[bool, _filter("offline", "Only those without a leader.")] = False,
    out_of_preference: Annotated[
        bool, _filter("out-of-preference", "Only those whose leader is not their first replica.")
    ] = False,
    lag: Annotated[
        bool, option("--lag", "Show how many records each replica lacks; ? if its broker does not respond.")
    ] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show partitions with leaders, replicas and offsets, and the configs that differ from their defaults.

    With filters, only partitions that match at least one of them are shown, of all topics or of the given ones.

    Example: kbroker topics describe --under-replicated --offline
    """
    given = {
        "under-replicated": under_replicated,
        "at-min-isr": at_min_isr,
        "under-min-isr": under_min_isr,
        "offline": offline,
        "out-of-preference": out_of_preference,
    }
    chosen = [name for name, is_given in given.items() if is_given]
    if not topics and not chosen:
        raise usage_error("name a topic, or use a filter such as --under-replicated")
    with admin_client(bootstrap) as client:
        results = describe_topics(client, topics or None)
        missing = [topic for topic in results if topic.error_code]
        for topic in missing:
            print_error(topic_error(topic.name, topic.error_code))
        found = [topic for topic in results if not topic.error_code]
        moving = reassignments_if_known(client)
        if chosen:
            found = _with_problems(client, found, chosen, moving)
        lags = replica_lag(client, found) if lag else None
        descriptions = [_description(client, topic, lags, moving) for topic in found]
    if as_json:
        print_json(descriptions)
    else:
        for description in descriptions:
            _print_description(description)
    if missing:
        raise typer.Exit(1)


def _with_problems(
    client: ClusterClient,
    topics: Sequence[MetadataTopic],
    chosen: Sequence[str],
    moving: Mapping[Partition, ReplicaChanges],
) -> list[MetadataTopic]:
    """Return the topics that have partitions with one of these conditions, with these partitions only."""
    min_isr = min_isr_by_topic(client, [topic.name for topic in topics])
    selected = []

    def health(name: str, partition: MetadataResponsePartition) -> PartitionHealth:
        adding = moving.get((name, partition.partition_index), NO_REASSIGNMENT).adding
        return partition_health(partition, min_isr[name], adding)

    for topic in sorted(topics, key=lambda topic: topic.name):
        partitions = [
            partition
            for partition in topic.partitions
            if any(CONDITIONS[name](health(topic.name, partition)) for name in chosen)
        ]
        if partitions:
            selected.append(topic._replace(partitions=partitions))
    return selected


def _description(
    client: ClusterClient,
    topic: MetadataTopic,
    lags: Mapping[Partition, ReplicaLag] | None,
    moving: Mapping[Partition, ReplicaChanges],
) -> dict[str, Any]:
    name = topic.name
    led = partitions_by_leader([topic])
    offsets = {timestamp: offsets_at_brokers(client, led, timestamp) for timestamp in (EARLIEST, LATEST)}
    configs = topic_configs(client, [name], set_only=True).get(name, {})

    archived = archive_lags(client, topic) if configs.get(ARCHIVE_TABLE) else {}

    def offset(timestamp: int, row: MetadataResponsePartition) -> int | None:
        return offsets[timestamp].get((row.leader_id, (name, row.partition_index)))

    closing = first_closing(client, name)
    is_closing = closing is not None and closing < len(topic.partitions)
    return topic_summary(topic, configs.get(VIEW_OF)) | {
        **({"retired_from": closing} if closing is not None and not is_closing else {}),
        "configs": [
            {"name": config, "value": value, "source": "DYNAMIC_TOPIC_CONFIG"}
            for config, value in sorted(configs.items())
        ],
        "partitions": [
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replica_nodes,
                "isr": partition.isr_nodes,
                **({"closing": partition.partition_index >= closing} if closing is not None and is_closing else {}),
                **moving.get((name, partition.partition_index), NO_REASSIGNMENT)._asdict(),
                **({} if lags is None else {"replica_lag": _lag_rows(lags[name, partition.partition_index])}),
                "earliest_offset": offset(EARLIEST, partition),
                "latest_offset": offset(LATEST, partition),
                **({"archive": archived[partition.partition_index]._asdict()} if archived else {}),
            }
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ],
    }


def _lag_rows(lags: ReplicaLag) -> list[dict[str, int | None]]:
    return [{"broker": broker, "lag": lag} for broker, lag in lags.items()]


def _print_description(topic: Mapping[str, Any]) -> None:
    facts = [f"id {topic['topic_id']}", count_text(len(topic["partitions"]), "partition")]
    facts += ["internal"] if topic["internal"] else []
    facts += [f"view of {topic['view_of']}"] if "view_of" in topic else []
    facts += [f"{config['name']}={config['value']}" for config in topic["configs"]]
    print_heading(topic["topic"], "  ".join(facts))
    lag = ("lag",) if any("replica_lag" in partition for partition in topic["partitions"]) else ()
    is_moving = any(partition["adding"] or partition["removing"] for partition in topic["partitions"])
    moves = ("adding", "removing") if is_moving else ()
    state = ("state",) if any("closing" in partition for partition in topic["partitions"]) else ()
    archive = ("archive lag",) if any("archive" in partition for partition in topic["partitions"]) else ()
    print_table(
        ("partition", "leader", "epoch", "replicas", "isr", *state, *moves, *lag, "earliest", "latest", *archive),
        [_partition_row(partition, moves) for partition in topic["partitions"]],
    )
    if "retired_from" in topic:
        print(f"Producers may still send to removed partitions, from {topic['retired_from']} on.")


def _partition_row(partition: Mapping[str, Any], moves: Sequence[str]) -> list[Cell]:
    return [
        partition["partition"],
        partition["leader"] if partition["leader"] >= 0 else None,
        partition["leader_epoch"],
        ",".join(map(str, partition["replicas"])),
        ",".join(map(str, partition["isr"])),
        *(["closing" if partition["closing"] else "open"] if "closing" in partition else []),
        *(",".join(map(str, partition[name])) or None for name in moves),
        *([lag_text(row["lag"] for row in partition["replica_lag"])] if "replica_lag" in partition else []),
        partition["earliest_offset"],
        partition["latest_offset"],
        *([str(ArchiveLag(**partition["archive"]))] if "archive" in partition else []),
    ]
