"""The table of all metric families. `python -m kbroker.exporter.families > docs/metrics.md` generates their page.

The names with kafka_ are those of Kafka's JMX metrics with the usual rules of the Prometheus JMX exporter, and those of
kafka_exporter (topics, offsets, consumer groups). Metrics that Kafka does not have begin with kbroker_. process_* and
python_* come from prometheus_client.
"""

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Family(NamedTuple):
    name: str
    kind: str
    labels: str
    help: str


_BROKER_TOPIC = "kafka_server_brokertopicmetrics_"
_REQUEST = "kafka_network_requestmetrics_"
_REPLICAS = "kafka_server_replicamanager_"
_GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
_TP = "topic, partition"
_GROUP = "consumergroup, topic, partition"
_GROUP_TOPIC = "consumergroup, topic"

FAMILIES = (
    Family(
        _BROKER_TOPIC + "messagesin_total",
        COUNTER,
        "topic",
        "Records appended by leaders. Without a topic: in total, with internal and deleted topics.",
    ),
    Family(
        _BROKER_TOPIC + "bytesin_total",
        COUNTER,
        "topic",
        "Bytes of record batches appended by leaders. Without a topic: in total, with deleted topics.",
    ),
    Family(
        _BROKER_TOPIC + "bytesout_total",
        COUNTER,
        "topic",
        "Bytes of record batches sent to consumers. Without a topic: in total, with deleted topics.",
    ),
    Family(_BROKER_TOPIC + "replicationbytesin_total", COUNTER, "", "Bytes of record batches appended by followers."),
    Family(_BROKER_TOPIC + "replicationbytesout_total", COUNTER, "", "Bytes of record batches sent to followers."),
    Family(
        "kafka_server_leaderreplication_byte_rate",
        GAUGE,
        "",
        "Bytes per second of throttled replicas that this broker sends to followers, in sync or not. It is compared "
        "with leader.replication.throttled.rate.",
    ),
    Family(
        "kafka_server_followerreplication_byte_rate",
        GAUGE,
        "",
        "Bytes per second of throttled replicas that this broker fetches, in sync or not. It is compared with "
        "follower.replication.throttled.rate.",
    ),
    Family(
        _BROKER_TOPIC + "reassignmentbytesin_total",
        COUNTER,
        "",
        "Bytes of record batches appended by followers that a reassignment adds.",
    ),
    Family(
        _BROKER_TOPIC + "reassignmentbytesout_total",
        COUNTER,
        "",
        "Bytes of record batches sent to followers that a reassignment adds.",
    ),
    Family(_BROKER_TOPIC + "totalproducerequests_total", COUNTER, "", "Produce requests."),
    Family(_BROKER_TOPIC + "failedproducerequests_total", COUNTER, "", "Rejected partitions of Produce requests."),
    Family(_BROKER_TOPIC + "totalfetchrequests_total", COUNTER, "", "Fetch requests."),
    Family(
        _BROKER_TOPIC + "failedfetchrequests_total",
        COUNTER,
        "",
        "Rejected partitions of Fetch requests, and rejected Fetch requests.",
    ),
    Family(
        _REQUEST + "requests_total",
        COUNTER,
        "request, version",
        "Requests by API. Fetch requests are also counted as FetchConsumer or, of other brokers, as FetchFollower.",
    ),
    Family(
        _REQUEST + "errors_total",
        COUNTER,
        "request, error",
        "Error codes in responses, without NONE. A response may have several.",
    ),
    Family(
        _REQUEST + "totaltime_seconds",
        HISTOGRAM,
        "request",
        "Time from the last byte of a request until its response is written.",
    ),
    Family(_REQUEST + "requestbytes_total", COUNTER, "request", "Bytes of requests."),
    Family(_REQUEST + "responsebytes_total", COUNTER, "request", "Bytes of responses."),
    Family("kafka_server_socket_server_metrics_connection_count", GAUGE, "listener", "Open connections."),
    Family(
        "kafka_server_socket_server_metrics_connection_creation_total", COUNTER, "listener", "Connections accepted."
    ),
    Family(
        "kafka_server_socket_server_metrics_connection_close_total",
        COUNTER,
        "listener",
        "Connections closed by either side.",
    ),
    Family(
        "kafka_network_socketserver_expiredconnectionskilledcount",
        GAUGE,
        "",
        "Connections closed because they were idle for connections.max.idle.ms.",
    ),
    Family("kafka_server_kafkaserver_brokerstate", GAUGE, "", "3: the broker is running."),
    Family(_REPLICAS + "partitioncount", GAUGE, "", "Partitions on this broker."),
    Family(_REPLICAS + "leadercount", GAUGE, "", "Partitions that this broker leads."),
    Family(
        _REPLICAS + "underreplicatedpartitions", GAUGE, "", "Led partitions with fewer in-sync replicas than replicas."
    ),
    Family(_REPLICAS + "reassigningpartitions", GAUGE, "", "Led partitions whose replicas a reassignment moves."),
    Family(
        _REPLICAS + "underminisrpartitioncount",
        GAUGE,
        "",
        "Led partitions with fewer in-sync replicas than min.insync.replicas, which reject acks=all.",
    ),
    Family(
        _REPLICAS + "atminisrpartitioncount",
        GAUGE,
        "",
        "Led partitions with as many in-sync replicas as min.insync.replicas; those with one replica, too.",
    ),
    Family(_REPLICAS + "isrshrinks_total", COUNTER, "", "Led partitions whose in-sync replicas became fewer."),
    Family(_REPLICAS + "isrexpands_total", COUNTER, "", "Led partitions whose in-sync replicas became more."),
    Family(
        _REPLICAS + "failedisrupdates_total",
        COUNTER,
        "",
        "Changes of in-sync replicas that the controller has refused or not answered.",
    ),
    Family(
        _REPLICAS + "offlinereplicacount",
        GAUGE,
        "",
        "Logs that are offline until a restart or could not be opened.",
    ),
    Family(
        "kafka_server_replicafetchermanager_maxlag",
        GAUGE,
        "clientId",
        "The largest lag of the partitions that this broker follows: committed records that it does not have.",
    ),
    Family(
        "kafka_server_replicafetchermanager_failedpartitionscount",
        GAUGE,
        "clientId",
        "Followed partitions that cannot be appended to until a restart.",
    ),
    Family(
        "kafka_server_fetcherlagmetrics_consumerlag",
        GAUGE,
        "clientId, topic, partition",
        "The lag of a followed partition after the last response of its leader. clientId ends with the leader's id.",
    ),
    Family(_REPLICAS + "produceridcount", GAUGE, "", "Producer ids with state, in all partitions."),
    Family("kafka_controller_kafkacontroller_activecontrollercount", GAUGE, "", "1 if this broker is the controller."),
    Family("kafka_controller_kafkacontroller_activebrokercount", GAUGE, "", "Brokers that serve clients."),
    Family(
        "kafka_controller_kafkacontroller_fencedbrokercount",
        GAUGE,
        "",
        "Brokers that are known but do not serve clients.",
    ),
    Family(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        GAUGE,
        "",
        "Partitions that are led by another than their first replica. Every broker reports it.",
    ),
    Family(
        "kafka_controller_kafkacontroller_globaltopiccount",
        GAUGE,
        "",
        "Topics of the cluster. Every broker reports it.",
    ),
    Family(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        GAUGE,
        "",
        "Partitions of the cluster. Every broker reports it.",
    ),
    Family(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        GAUGE,
        "",
        "Partitions without a leader. Every broker reports it.",
    ),
    Family(
        "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
        COUNTER,
        "",
        "Metadata changes in which this broker, as the controller, has elected leaders.",
    ),
    Family(
        "kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total",
        COUNTER,
        "",
        "Elections by this controller of eligible leader replicas (KIP-966).",
    ),
    Family(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        COUNTER,
        "",
        "Elections by this controller of leaders that may lack committed records.",
    ),
    Family(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        GAUGE,
        "delayedoperation",
        "Waiting requests: Produce for acknowledgement, Fetch for records.",
    ),
    Family("kafka_server_fetchsessioncache_numincrementalfetchsessions", GAUGE, "", "Fetch sessions."),
    Family(
        "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", GAUGE, "", "Partitions in fetch sessions."
    ),
    Family("kafka_log_log_size", GAUGE, _TP, "Bytes of the log's segments."),
    Family("kafka_log_log_numlogsegments", GAUGE, _TP, "Segments of the log."),
    Family("kafka_log_log_logstartoffset", GAUGE, _TP, "First offset that can be read."),
    Family("kafka_log_log_logendoffset", GAUGE, _TP, "Next offset to be assigned."),
    Family(
        "kafka_cluster_partition_underreplicated",
        GAUGE,
        _TP,
        "1 if it has fewer in-sync replicas than replicas; 0 where it is not led.",
    ),
    Family("kafka_cluster_partition_insyncreplicascount", GAUGE, _TP, "In-sync replicas; 0 where it is not led."),
    Family("kafka_cluster_partition_replicascount", GAUGE, _TP, "Replicas; 0 where it is not led."),
    Family(
        "kafka_cluster_partition_underminisr",
        GAUGE,
        _TP,
        "1 if it has fewer in-sync replicas than min.insync.replicas; 0 where it is not led.",
    ),
    Family(
        "kafka_cluster_partition_atminisr",
        GAUGE,
        _TP,
        "1 if it has as many in-sync replicas as min.insync.replicas; 0 where it is not led.",
    ),
    Family(
        "kafka_cluster_partition_laststableoffsetlag",
        GAUGE,
        _TP,
        "High watermark minus last stable offset: what read_committed consumers must wait for.",
    ),
    Family(_GROUPS + "numgroups", GAUGE, "", "Classic consumer groups."),
    Family(_GROUPS + "numgroupsempty", GAUGE, "", "Groups in state Empty."),
    Family(_GROUPS + "numgroupspreparingrebalance", GAUGE, "", "Groups in state PreparingRebalance."),
    Family(_GROUPS + "numgroupscompletingrebalance", GAUGE, "", "Groups in state CompletingRebalance."),
    Family(_GROUPS + "numgroupsstable", GAUGE, "", "Groups in state Stable."),
    Family(_GROUPS + "numgroupsdead", GAUGE, "", "Groups in state Dead."),
    Family(_GROUPS + "numoffsets", GAUGE, "", "Committed offsets."),
    Family("kafka_brokers", GAUGE, "", "Brokers of the cluster. Only the controller reports it."),
    Family("kafka_broker_info", GAUGE, "id, address", "1 for each broker. Only the controller reports it."),
    Family("kafka_topic_partitions", GAUGE, "topic", "Partitions of the topic. Only the controller reports it."),
    Family(
        "kafka_topic_partition_current_offset",
        GAUGE,
        _TP,
        "High watermark: the offset after the last record that consumers can read.",
    ),
    Family("kafka_topic_partition_oldest_offset", GAUGE, _TP, "First offset that can be read."),
    Family("kafka_topic_partition_leader", GAUGE, _TP, "The leader's broker id."),
    Family("kafka_topic_partition_leader_is_preferred", GAUGE, _TP, "1 if the preferred replica leads."),
    Family("kafka_topic_partition_replicas", GAUGE, _TP, "Replicas."),
    Family("kafka_topic_partition_in_sync_replica", GAUGE, _TP, "In-sync replicas."),
    Family(
        "kafka_topic_partition_under_replicated_partition",
        GAUGE,
        _TP,
        "1 if it has fewer in-sync replicas than replicas.",
    ),
    Family("kafka_consumergroup_members", GAUGE, "consumergroup", "Members of the group."),
    Family("kafka_consumergroup_current_offset", GAUGE, _GROUP, "Committed offset."),
    Family("kafka_consumergroup_current_offset_sum", GAUGE, _GROUP_TOPIC, "Sum of the committed offsets in the topic."),
    Family("kafka_consumergroup_lag", GAUGE, _GROUP, "High watermark minus committed offset."),
    Family("kafka_consumergroup_lag_sum", GAUGE, _GROUP_TOPIC, "Sum of the lag in the topic."),
    Family(
        "kbroker_connections_closed_total",
        COUNTER,
        "reason",
        "Connections that the broker closed because of an invalid or unsupported request, or a limit.",
    ),
    Family(
        "kbroker_refusals_suppressed_total",
        COUNTER,
        "",
        "Errors that the log reports as a count only.",
    ),
    Family(
        "kbroker_leader_elections_total",
        COUNTER,
        "",
        "Partitions for which this broker, as the controller, has elected another leader.",
    ),
    Family(
        "kbroker_replicas_not_rebuilt",
        GAUGE,
        "",
        "Replicas that self-healing (kbroker.replica.rebuild.after.ms) does not rebuild although their broker stays "
        "away: no live broker may hold them, no replica leads, or too many brokers are away. 0 but on the controller.",
    ),
    Family("kbroker_peer_connections", GAUGE, "", "Open connections to other brokers."),
    Family("kbroker_peer_connection_failures_total", COUNTER, "", "Failed attempts to connect to another broker."),
    Family(
        "kbroker_peer_requests_without_response_total",
        COUNTER,
        "",
        "Requests to other brokers that got no response: the connection was closed, or the time was over.",
    ),
    Family("kbroker_unsent_response_bytes", GAUGE, "", "Bytes of responses that slow clients have not read yet."),
    Family(
        "kbroker_event_loop_delay_seconds",
        HISTOGRAM,
        "",
        "Delay of a timer that fires every 100 ms: how long the event loop was busy.",
    ),
    Family("kbroker_log_offline", GAUGE, _TP, "1 for a log that is offline until a restart. No sample for other logs."),
    Family(
        "kbroker_log_full",
        GAUGE,
        _TP,
        "1 for a log that rejects appends because the disk is full or read-only. No sample for other logs.",
    ),
    Family("kbroker_compactions_running", GAUGE, "", "Compactions in progress."),
    Family("kbroker_compactions_total", COUNTER, "", "Completed compactions."),
    Family("kbroker_compaction_failures_total", COUNTER, "", "Failed compactions."),
    Family("kbroker_compaction_seconds_total", COUNTER, "", "Duration of all completed compactions."),
    Family("kbroker_compaction_reclaimed_bytes_total", COUNTER, "", "Bytes that compaction has removed."),
    Family("kbroker_retention_segments_total", COUNTER, "", "Segments that retention has removed."),
    Family(
        "kbroker_scrape_seconds",
        GAUGE,
        "",
        "Time to collect this page, including the requests that were served meanwhile.",
    ),
)

BY_NAME = {family.name: family for family in FAMILIES}

_END = "\nRead on: [operations.md](operations.md#monitoring) says which of them to alert on.\n"
_HEAD = """# Metrics

`kbroker start --metrics HOST:PORT` (broker config `kbroker.metrics.listener`) serves these metrics at `/metrics` in the
text format of Prometheus, and a health check at `/healthz`:

```console
$ kbroker start --metrics 127.0.0.1:9308
$ curl -s http://127.0.0.1:9308/metrics
```

The names with `kafka_` are those that Grafana dashboards for Kafka use: Kafka's JMX metrics with the usual rules of the
Prometheus JMX exporter, and kafka_exporter (`kafka_brokers`, `kafka_topic_*`, `kafka_consumergroup_*`). Where Kafka has
percentiles in milliseconds (`..._totaltimems{quantile}`) there is a histogram in seconds. Counters start at 0 with the
process. `process_*` and `python_*` come from prometheus_client.

In a cluster scrape every broker. `kafka_topic_partition_*` of a partition come from its leader only, and
`kafka_consumergroup_*` of a group from its coordinator, so sums over all brokers are right. The lag of a group in a
partition is known where its coordinator has a replica of the partition.

This page is generated: `python -m kbroker.exporter.families > docs/metrics.md`.

| name | type | labels | meaning |
|---|---|---|---|
"""


def render_document() -> str:
    """Return docs/metrics.md."""
    rows = [f"| `{family.name}` | {family.kind} | {family.labels} | {family.help} |\n" for family in FAMILIES]
    return "".join([_HEAD, *rows, _END])


if __name__ == "__main__":
    print(render_document(), end="")
