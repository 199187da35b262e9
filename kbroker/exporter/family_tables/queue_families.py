"""Metrics of delayed delivery and of idempotency keys. Those of a partition come from its leader."""

from kbroker.exporter.family_tables.family import COUNTER, GAUGE, TP, Family

QUEUE_FAMILIES = (
    Family(
        "kbroker_delay_pending_records",
        GAUGE,
        TP,
        "Delayed records that have not been delivered yet, including those of open transactions. Only topics with "
        "delayed delivery have it.",
    ),
    Family(
        "kbroker_delay_next_due_timestamp_seconds",
        GAUGE,
        TP,
        "Time since the epoch at which the next pending record is due. No sample if there is none.",
    ),
    Family(
        "kbroker_delay_overdue_seconds",
        GAUGE,
        TP,
        "For how long the oldest pending record has been due. It grows while too few replicas are in sync.",
    ),
    Family(
        "kbroker_delay_loading_partitions",
        GAUGE,
        "",
        "Led partitions whose pending records are being loaded from the log; nothing is delivered meanwhile.",
    ),
    Family("kbroker_delay_delivered_records_total", COUNTER, "", "Delayed records delivered when they were due."),
    Family("kbroker_delay_delivered_early_records_total", COUNTER, "", "Delayed records delivered on request."),
    Family("kbroker_delay_cancelled_records_total", COUNTER, "", "Delayed records cancelled."),
    Family(
        "kbroker_delay_moved_records_total",
        COUNTER,
        "",
        "Pending records stored again because retention was about to delete them.",
    ),
    Family(
        "kbroker_delay_lateness_seconds_total",
        COUNTER,
        "",
        "Sum of the lateness of delivered records: the time from when a record is due until it is delivered.",
    ),
    Family("kbroker_delay_max_lateness_seconds", GAUGE, "", "Maximum lateness of a record since the start."),
    Family("kbroker_dedup_keys", GAUGE, TP, "Idempotency keys that are remembered. Only topics with a window have it."),
    Family(
        "kbroker_dedup_duplicate_records_total",
        COUNTER,
        "",
        "Records acknowledged without being stored, because their idempotency key was known.",
    ),
    Family(
        "kbroker_dedup_evicted_keys_total",
        COUNTER,
        "",
        "Idempotency keys forgotten before their window ended, because of kbroker.dedup.max.keys.",
    ),
)
