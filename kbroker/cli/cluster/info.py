"""`kbroker cluster info`: what a cluster is: its id, brokers with versions, features, and how much it has."""

from typing import Any

from kbroker.cli.cluster.cluster_state import (
    broker_rows,
    cluster_summary,
    condition_rows,
    print_cluster,
    read_cluster,
    read_health,
)
from kbroker.cli.common.client import CLIENT_ID, admin_client, raise_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_table, watchable
from kbroker.cli.common.partitions import reassignments_if_known
from kbroker.cli.common.values import format_timestamp, if_known
from kbroker.client.cluster import ClusterClient
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse

# A broker that does not respond within this time is probably down.
TIMEOUT_S = 2.0


@watchable
def info(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show the cluster id, the controller, the brokers with their versions, and the features of the cluster.

    VERSION and STARTED are missing for brokers of Apache Kafka, which do not report them: the level of metadata.version
    stands for the version there. kbroker cluster status also looks for problems, and its exit status says whether there
    are some.

    Example: kbroker cluster info --bootstrap 127.0.0.1:9092
    """
    with admin_client(bootstrap) as client:
        cluster, topics = read_cluster(client)
        partitions = list(read_health(client, topics, reassignments_if_known(client)).values())
        document = cluster_summary(cluster, len(topics), partitions)
        document["features"] = read_features(client)
        running = [broker.broker_id for broker in cluster.brokers if not broker.is_fenced]
        requests = [(broker, DescribeBrokerRequest()) for broker in running]
        processes = dict(client.request_all(requests, DescribeBrokerResponse, TIMEOUT_S))
    document["brokers"] = [
        {
            **row,
            "version": found.software_version if found else None,
            "started_ms": found.started_ms if found else None,
        }
        for broker, row in broker_rows(cluster, partitions)
        for found in [processes.get(broker)]
    ]
    if as_json:
        print_json(document)
        return
    print_cluster(document)
    print_table(
        ("broker", "address", "rack", "state", "version", "started"),
        [
            [*list(broker.values())[:4], broker["version"], if_known(format_timestamp, broker["started_ms"])]
            for broker in document["brokers"]
        ],
    )
    print_table(("feature", "level", "supported"), [_feature_row(feature) for feature in document["features"]])
    print_table(("condition", "partitions"), condition_rows(document))


def read_features(client: ClusterClient) -> list[dict[str, Any]]:
    """Return the features of the cluster that a broker reports: the finalized level, None for none, and its range."""
    request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="unknown")
    response = client.request(request, ApiVersionsResponse)
    raise_error(response.error_code, subject="ApiVersions: ")
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    ranges = {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}
    return [
        {
            "feature": name,
            "level": levels.get(name),
            "min_level": ranges[name][0] if name in ranges else None,
            "max_level": ranges[name][1] if name in ranges else None,
        }
        for name in sorted({*levels, *ranges})
    ]


def _feature_row(feature: dict[str, Any]) -> list[Any]:
    name, level, lowest, highest = feature.values()
    return [name, level, None if lowest is None else f"{lowest} to {highest}"]
