"""`kbroker cluster`: the brokers of a cluster, and the partitions that have a problem."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_heading, print_json, print_table
from kbroker.cli.common.partition_health import CONDITIONS, PartitionHealth, min_isr_by_topic, partition_health

app = typer.Typer()

# Conditions in which clients fail.
PROBLEMS = ("offline", "under-min-isr")


@app.callback()
def _cluster() -> None:
    """A group of commands, even while there is one."""


@app.command("status")
def status(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the brokers, and how many partitions have a problem.

    The exit status is 1 if a partition has no leader or rejects acks=all. kbroker topics describe lists the partitions.

    Example: kbroker cluster status --bootstrap 127.0.0.1:9092
    """
    with admin_client(bootstrap) as client:
        cluster = client.describe_cluster()
        topics = [topic for topic in client.describe_topics(None) if not topic["error_code"]]
        min_isr = min_isr_by_topic(client, [topic["name"] for topic in topics])
    partitions = [
        partition_health(partition, min_isr[topic["name"]]) for topic in topics for partition in topic["partitions"]
    ]
    summary = cluster_summary(cluster, len(topics), partitions)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)
    raise typer.Exit(1 if any(summary["partitions"][name] for name in PROBLEMS) else 0)


def cluster_summary(cluster: Mapping[str, Any], topics: int, partitions: Sequence[PartitionHealth]) -> dict[str, Any]:
    """Return the JSON of a cluster. `cluster`: the response of DescribeCluster."""
    leads = Counter(part.leader for part in partitions)
    prefers = Counter(part.replicas[0] for part in partitions if part.replicas)
    hosts = Counter(node_id for part in partitions for node_id in part.replicas)
    in_sync = Counter(node_id for part in partitions for node_id in part.isr)
    known = {broker["broker_id"]: broker for broker in cluster["brokers"]}
    brokers = []
    for node_id in sorted({*known, *hosts}):
        broker = known.get(node_id)
        brokers.append(
            {
                "broker": node_id,
                "address": f"{broker['host']}:{broker['port']}" if broker else None,
                "rack": broker["rack"] if broker else None,
                "state": _state(broker, cluster["controller_id"]),
                "leads": leads[node_id],
                "preferred": prefers[node_id],
                "replicas": hosts[node_id],
                "in_sync": in_sync[node_id],
            }
        )
    counts = {name: sum(map(is_met, partitions)) for name, is_met in CONDITIONS.items()}
    return {
        "cluster_id": cluster["cluster_id"],
        "controller": cluster["controller_id"],
        "brokers": brokers,
        "topics": topics,
        "partitions": {"total": len(partitions), **counts},
    }


def _state(broker: Mapping[str, Any] | None, controller_id: int) -> str:
    """Return the state of a broker. The controller knows a fenced one, which serves no clients: it is probably down."""
    if broker is None:
        return "unknown"
    if broker.get("is_fenced"):
        return "fenced"
    return "controller" if broker["broker_id"] == controller_id else "running"


def _print_summary(summary: Mapping[str, Any]) -> None:
    running = sum(broker["state"] in ("running", "controller") for broker in summary["brokers"])
    total = summary["partitions"]["total"]
    facts = [count_text(running, "broker"), count_text(summary["topics"], "topic"), count_text(total, "partition")]
    print_heading(f"cluster {summary['cluster_id']}", "  ".join(facts))
    columns = ("broker", "address", "rack", "state", "leads", "preferred", "replicas", "in sync")
    print_table(columns, [list(broker.values()) for broker in summary["brokers"]])
    rows = [[name, summary["partitions"][name]] for name in CONDITIONS]
    print_table(("condition", "partitions"), rows)
