"""Broker configs: quotas, metrics and telemetry."""

from kbroker.config.checks import address, at_least, items, one_of
from kbroker.config.definition import CLUSTER_WIDE, LOW, MEDIUM, PER_BROKER, READ_ONLY, Row
from kbroker.config.values import CLASS, INT, LIST, LONG, LONG_MAX, STRING

# fmt: off
ROWS = (
    Row("alter.log.dirs.replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of moves between log directories is measured."),
    Row("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of moves between log directories is measured."),
    Row("client.quota.callback.class", CLASS, None, None, LOW, READ_ONLY,
        "Class that decides which quota a client has."),
    Row("controller.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of metadata changes is measured."),
    Row("controller.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of metadata changes is measured."),
    Row("kafka.metrics.polling.interval.secs", INT, 10, at_least(1), LOW, READ_ONLY,
        "How often the classes of kafka.metrics.reporters read the metrics."),
    Row("kafka.metrics.reporters", LIST, (), items(), LOW, READ_ONLY,
        "Classes that report the broker's older metrics."),
    Row("kbroker.log.format", STRING, "text", one_of("text", "json"), LOW, READ_ONLY,
        "kbroker's own. Form of the log's lines: text, or a JSON object each."),
    Row("kbroker.metrics.listener", STRING, "", address, MEDIUM, READ_ONLY,
        "kbroker's own. HOST:PORT on which /metrics is served for Prometheus; nothing for nowhere."),
    Row("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), items(), LOW,
        CLUSTER_WIDE,
        "Classes that report the broker's metrics."),
    Row("metrics.num.samples", INT, 2, at_least(1), LOW, READ_ONLY,
        "Samples over which a metric is computed."),
    Row("metrics.recording.level", STRING, "INFO", None, LOW, READ_ONLY,
        "Most detailed level of metrics that is recorded: INFO, DEBUG or TRACE."),
    Row("metrics.sample.window.ms", LONG, 30_000, at_least(1), LOW, READ_ONLY,
        "Length of a sample over which a metric is computed."),
    Row("quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of a client is measured."),
    Row("quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of a client is measured."),
    Row("replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of throttled replication is measured."),
    Row("replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of throttled replication is measured."),
    Row("telemetry.max.bytes", INT, 1 << 20, at_least(1), LOW, READ_ONLY,
        "Most bytes of metrics that a client may push at once (KIP-714)."),
)
# fmt: on

# fmt: off
DYNAMIC_ONLY = (
    Row("follower.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, PER_BROKER,
        "Bytes a second that a follower may fetch for throttled replicas."),
    Row("leader.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, PER_BROKER,
        "Bytes a second that a leader may send for throttled replicas."),
    Row("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, at_least(0), MEDIUM, PER_BROKER,
        "Bytes a second at which replicas may move between log directories."),
)
# fmt: on
