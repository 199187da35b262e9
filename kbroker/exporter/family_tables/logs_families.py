"""Metrics of waiting requests, fetch sessions, logs and partitions."""

from kbroker.exporter.family_tables.family import GAUGE, TP, Family

LOGS_FAMILIES = (
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
    Family("kafka_log_log_size", GAUGE, TP, "Bytes of the log's segments."),
    Family("kafka_log_log_numlogsegments", GAUGE, TP, "Segments of the log."),
    Family("kafka_log_log_logstartoffset", GAUGE, TP, "First offset that can be read."),
    Family("kafka_log_log_logendoffset", GAUGE, TP, "Next offset to be assigned."),
    Family(
        "kafka_cluster_partition_underreplicated",
        GAUGE,
        TP,
        "1 if it has fewer in-sync replicas than replicas; 0 where it is not led.",
    ),
    Family("kafka_cluster_partition_insyncreplicascount", GAUGE, TP, "In-sync replicas; 0 where it is not led."),
    Family("kafka_cluster_partition_replicascount", GAUGE, TP, "Replicas; 0 where it is not led."),
    Family(
        "kafka_cluster_partition_underminisr",
        GAUGE,
        TP,
        "1 if it has fewer in-sync replicas than min.insync.replicas; 0 where it is not led.",
    ),
    Family(
        "kafka_cluster_partition_atminisr",
        GAUGE,
        TP,
        "1 if it has as many in-sync replicas as min.insync.replicas; 0 where it is not led.",
    ),
    Family(
        "kafka_cluster_partition_laststableoffsetlag",
        GAUGE,
        TP,
        "High watermark minus last stable offset: what read_committed consumers must wait for.",
    ),
)
