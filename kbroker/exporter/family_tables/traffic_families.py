"""Metrics of requests, traffic and connections."""

from kbroker.exporter.family_tables.family import COUNTER, GAUGE, HISTOGRAM, Family

_BROKER_TOPIC = "kafka_server_brokertopicmetrics_"
_REQUEST = "kafka_network_requestmetrics_"

REQUESTS_FAMILIES = (
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
)
