"""Metrics that Kafka does not have."""

from kbroker.exporter.family_tables.family import COUNTER, GAUGE, HISTOGRAM, TP, Family

KBROKER_FAMILIES = (
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
        "away: no live broker may hold them, no replica leads, the plan is refused, or too many brokers are away. 0 "
        "on all brokers but the controller.",
    ),
    Family(
        "kbroker_partitions_recovering",
        GAUGE,
        "",
        "Partitions without a leader because the coordination service was restored from an older copy, until the logs "
        "of their replicas are compared. Every broker reports it.",
    ),
    Family("kbroker_peer_connections", GAUGE, "", "Open connections to other brokers."),
    Family("kbroker_peer_connection_failures_total", COUNTER, "", "Failed attempts to connect to another broker."),
    Family(
        "kbroker_peer_requests_without_response_total",
        COUNTER,
        "",
        "Requests to other brokers without a response: the connection was closed, or the request timed out.",
    ),
    Family("kbroker_unsent_response_bytes", GAUGE, "", "Bytes of responses that slow clients have not read yet."),
    Family(
        "kbroker_event_loop_delay_seconds",
        HISTOGRAM,
        "",
        "Delay of a timer that fires every 100 ms: how long the event loop was busy.",
    ),
    Family(
        "kbroker_logs_stray",
        GAUGE,
        "",
        "Logs that are set aside: the metadata does not assign them to this broker, and does not say that they were "
        "deleted.",
    ),
    Family("kbroker_log_offline", GAUGE, TP, "1 for a log that is offline until a restart. No sample for other logs."),
    Family(
        "kbroker_log_full",
        GAUGE,
        TP,
        "1 for a log that rejects appends because the disk is full or read-only. No sample for other logs.",
    ),
    Family(
        "kbroker_write_health",
        GAUGE,
        "",
        "2 while the broker cannot write to its disk (full, read-only, no file descriptors): other brokers lead, if "
        "they can. 1 while it can again, and gets no roles back yet. Otherwise 0.",
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
