"""`kbroker brokers`: the brokers of a cluster with their replicas and disk use, and plans that move replicas."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from kbroker.cli.cluster.broker_state import broker_state
from kbroker.cli.cluster.log_dirs import LogDirs, describe_log_dirs
from kbroker.cli.cluster.plans.commands import balance, drain, execute, plan, replace
from kbroker.cli.cluster.plans.run_plan import now_ms
from kbroker.cli.cluster.self_healing import print_healing, read_healing
from kbroker.cli.common.client import admin_client, read_again
from kbroker.cli.common.formatting import format_size
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_table
from kbroker.cli.common.pager import paginated
from kbroker.common import format_address

app = typer.Typer()

UNKNOWN_SIZE = "?"
COLUMNS = ("broker", "address", "rack", "state", "cordoned", "leads", "replicas", "out of sync", "disk use", "free")


@app.command("list")
@paginated
def list_brokers(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List brokers with their replicas and disk use.

    STATE is controller, running, fenced (probably down) or unknown (replicas are assigned to it, but it is not
    registered). A broker that is CORDONED gets no new replicas: see kbroker brokers drain. OUT_OF_SYNC is the number of
    its replicas that are not in sync. DISK_USE is the size of its replicas, and FREE the free space of the file systems
    they are on; both are ? if the broker does not respond.
    """
    with admin_client(bootstrap) as client:
        cluster = read_again(client.describe_cluster)
        topics = [topic for topic in read_again(lambda: client.describe_topics(None)) if not topic["error_code"]]
        running = [broker["broker_id"] for broker in cluster["brokers"] if not broker.get("is_fenced")]
        directories = describe_log_dirs(client, running)
        brokers = broker_summaries(cluster, [row for topic in topics for row in topic["partitions"]], directories)
        healing = read_healing(client, brokers)
    if as_json:
        print_json(brokers)
    else:
        print_table(COLUMNS, [_cells(broker) for broker in brokers])
        print_healing(healing, now_ms())


def broker_summaries(
    cluster: Mapping[str, Any], partitions: Sequence[Mapping[str, Any]], directories: Mapping[int, LogDirs]
) -> list[dict[str, Any]]:
    """Return the JSON of brokers: those that are registered, and those that only partitions name.

    `cluster`: the response of DescribeCluster. `partitions`: rows of a Metadata response.
    """
    leads = Counter(row["leader_id"] for row in partitions)
    replicas = Counter(broker for row in partitions for broker in row["replica_nodes"])
    out_of_sync = Counter(
        broker for row in partitions for broker in row["replica_nodes"] if broker not in row["isr_nodes"]
    )
    known = {broker["broker_id"]: broker for broker in cluster["brokers"]}
    summaries = []
    for broker_id in sorted({*known, *replicas}):
        broker = known.get(broker_id)
        found = directories.get(broker_id)
        summaries.append(
            {
                "broker": broker_id,
                "address": format_address(broker["host"], broker["port"]) if broker else None,
                "rack": broker["rack"] if broker else None,
                "state": broker_state(broker, cluster["controller_id"]),
                "cordoned": found.is_cordoned if found else None,
                "leads": leads[broker_id],
                "replicas": replicas[broker_id],
                "out_of_sync": out_of_sync[broker_id],
                "size_bytes": found.size_bytes if found else None,
                "free_bytes": found.free_bytes if found else None,
            }
        )
    return summaries


def _cells(broker: Mapping[str, Any]) -> list[Any]:
    *others, size_bytes, free_bytes = {**broker, "cordoned": "yes" if broker["cordoned"] else None}.values()
    return [*others, *(UNKNOWN_SIZE if size is None else format_size(size) for size in (size_bytes, free_bytes))]


for _command in (balance, drain, replace, execute, plan):
    app.command(_command.__name__)(_command)
