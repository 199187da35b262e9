"""`kbroker cluster`: the brokers of a cluster, the partitions that have a problem, and rolling restarts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from kbroker.cli.cluster.cluster_state import (
    broker_rows,
    cluster_summary,
    condition_rows,
    healing_json,
    print_cluster,
    print_healing,
    problem_texts,
    read_cluster,
    read_healing,
    read_health,
    read_problems,
)
from kbroker.cli.cluster.info import info
from kbroker.cli.cluster.roll import roll
from kbroker.cli.cluster.run_plan import now_ms
from kbroker.cli.common.client import admin_client
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_note, print_table, watchable
from kbroker.cli.common.partitions import UNKNOWN_LAG, PartitionHealth, ReplicaLag, reassignments_if_known, replica_lag
from kbroker.client.requests import Partition
from protocol.messages.k60_describe_cluster import DescribeClusterResponse

app = typer.Typer()

# Conditions in which clients fail.
PROBLEMS = ("offline", "under_min_isr")


@app.command("status")
@watchable
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
        lags = lag_by_broker(replica_lag(client, topics))
        partitions = list(read_health(client, topics, reassignments_if_known(client)).values())
        summary = cluster_summary(cluster, len(topics), partitions) | {
            "brokers": broker_statuses(cluster, partitions, lags)
        }
        healing = read_healing(client, summary["brokers"])
        problems = read_problems(client)
        summary["conditions"]["recovering"] = problems.recovering_partitions
    if as_json:
        write_health = {"failing": problems.failing_brokers, "on_probation": problems.brokers_on_probation}
        handshakes = [{"broker": each.broker_id, "reason": each.reason} for each in problems.failed_handshakes]
        others = {"self_healing": [healing_json(broker) for broker in healing], "write_health": write_health}
        print_json(summary | {"failed_handshakes": handshakes} | others)
    else:
        print_cluster(summary)
        names = ("broker", "address", "rack", "state", "leads", "preferred", "replica_count", "in_sync")
        rows = [
            [*(broker[name] for name in names), UNKNOWN_LAG if broker["lag"] is None else broker["lag"]]
            for broker in summary["brokers"]
        ]
        print_table((*names[:-2], "replicas", "in sync", "lag"), rows)
        print_table(("condition", "partitions"), condition_rows(summary))
        for text in problem_texts(problems, len(summary["brokers"])):
            print_note(text)
        print_healing(healing, now_ms())
    has_problem = any(summary["conditions"][name] for name in PROBLEMS)
    raise typer.Exit(1 if has_problem or problems.failing_brokers or problems.failed_handshakes else 0)


def lag_by_broker(lags: Mapping[Partition, ReplicaLag]) -> dict[int, int | None]:
    """Return how many records the replicas of each broker lack in total, None if some did not respond."""
    totals: dict[int, int | None] = {}
    for of_partition in lags.values():
        for broker, lag in of_partition.items():
            total = totals.get(broker, 0)
            totals[broker] = None if total is None or lag is None else total + lag
    return totals


def broker_statuses(
    cluster: DescribeClusterResponse, partitions: Sequence[PartitionHealth], lags: Mapping[int, int | None]
) -> list[dict[str, Any]]:
    """Return the JSON of brokers. `lags`: see lag_by_broker."""
    prefers = Counter(part.replicas[0] for part in partitions if part.replicas)
    return [
        {**row, "preferred": prefers[node_id], "lag": lags.get(node_id, 0)}
        for node_id, row in broker_rows(cluster, partitions)
    ]


app.command("info")(info)
app.command("roll")(roll)
