"""`kbroker cluster`: the brokers of a cluster, the partitions that have a problem, and rolling restarts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from kbroker.cli.cluster.cluster_state import (
    broker_rows,
    healing_json,
    print_healing,
    problem_texts,
    read_cluster,
    read_healing,
    read_problems,
)
from kbroker.cli.cluster.roll import roll
from kbroker.cli.cluster.run_plan import now_ms
from kbroker.cli.common.client import admin_client
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_heading, print_json, print_note, print_table
from kbroker.cli.common.partitions import (
    CONDITIONS,
    NO_REASSIGNMENT,
    UNKNOWN_LAG,
    PartitionHealth,
    ReplicaLag,
    min_isr_by_topic,
    partition_health,
    reassignments_if_known,
    replica_lag,
)
from kbroker.cli.common.values import count_text
from kbroker.client.requests import Partition
from protocol.messages.k60_describe_cluster import DescribeClusterResponse

app = typer.Typer()

# Conditions in which clients fail.
PROBLEMS = ("offline", "under-min-isr")


@app.command("status")
def status(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the brokers, and how many partitions have a problem.

    LAG is the total number of records that a broker's replicas lack, or ? if the broker does not respond. The exit
    status is 1 if a partition has no leader or rejects acks=all, a broker cannot write to its disk, or one cannot
    connect to another that runs, for example because of a certificate. kbroker topics describe lists the partitions.
    Notes say which brokers have such problems, and what self-healing (kbroker.replica.rebuild.after.ms) does about
    brokers that are away.

    Example: kbroker cluster status --bootstrap 127.0.0.1:9092
    """
    with admin_client(bootstrap) as client:
        cluster, topics = read_cluster(client)
        min_isr = min_isr_by_topic(client, [topic.name for topic in topics])
        lags = lag_by_broker(replica_lag(client, topics))
        moving = reassignments_if_known(client)
        partitions = [
            partition_health(
                partition,
                min_isr[topic.name],
                moving.get((topic.name, partition.partition_index), NO_REASSIGNMENT).adding,
            )
            for topic in topics
            for partition in topic.partitions
        ]
        summary = cluster_summary(cluster, len(topics), partitions, lags)
        healing = read_healing(client, summary["brokers"])
        problems = read_problems(client)
        summary["partitions"]["recovering"] = problems.recovering_partitions
    if as_json:
        write_health = {"failing": problems.failing_brokers, "on_probation": problems.brokers_on_probation}
        print_json(
            summary
            | {"failed_handshakes": {str(failed.broker_id): failed.reason for failed in problems.failed_handshakes}}
            | {"self_healing": [healing_json(broker) for broker in healing], "write_health": write_health}
        )
    else:
        running = sum(broker["state"] in ("running", "controller") for broker in summary["brokers"])
        counts = (running, "broker"), (len(topics), "topic"), (len(partitions), "partition")
        print_heading(f"cluster {summary['cluster_id']}", "  ".join(count_text(*count) for count in counts))
        columns = ("broker", "address", "rack", "state", "leads", "preferred", "replicas", "in sync", "lag")
        rows = [
            [*list(broker.values())[:-1], UNKNOWN_LAG if broker["lag"] is None else broker["lag"]]
            for broker in summary["brokers"]
        ]
        print_table(columns, rows)
        print_table(("condition", "partitions"), [[name, summary["partitions"][name]] for name in CONDITIONS])
        for text in problem_texts(problems, len(summary["brokers"])):
            print_note(text)
        print_healing(healing, now_ms())
    has_problem = any(summary["partitions"][name] for name in PROBLEMS)
    raise typer.Exit(1 if has_problem or problems.failing_brokers or problems.failed_handshakes else 0)


def lag_by_broker(lags: Mapping[Partition, ReplicaLag]) -> dict[int, int | None]:
    """Return how many records the replicas of each broker lack in total, None if some did not respond."""
    totals: dict[int, int | None] = {}
    for of_partition in lags.values():
        for broker, lag in of_partition.items():
            total = totals.get(broker, 0)
            totals[broker] = None if total is None or lag is None else total + lag
    return totals


def cluster_summary(
    cluster: DescribeClusterResponse, topics: int, partitions: Sequence[PartitionHealth], lags: Mapping[int, int | None]
) -> dict[str, Any]:
    """Return the JSON of a cluster. `lags`: see lag_by_broker."""
    leads = Counter(part.leader for part in partitions)
    prefers = Counter(part.replicas[0] for part in partitions if part.replicas)
    hosts = Counter(node_id for part in partitions for node_id in part.replicas)
    in_sync = Counter(node_id for part in partitions for node_id in part.isr)
    brokers = [
        {
            **row,
            "leads": leads[node_id],
            "preferred": prefers[node_id],
            "replicas": hosts[node_id],
            "in_sync": in_sync[node_id],
            "lag": lags.get(node_id, 0),
        }
        for node_id, row in broker_rows(cluster, hosts)
    ]
    counts = {name: sum(map(is_met, partitions)) for name, is_met in CONDITIONS.items()}
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": brokers,
        "topics": topics,
        "partitions": {"total": len(partitions), **counts},
    }


app.command("roll")(roll)
