"""Broker configs: quotas, metrics and telemetry."""

from kbroker.config.config_def import CLUSTER_WIDE, LOW, MEDIUM, PER_BROKER, READ_ONLY, ConfigKey
from kbroker.config.validators import address, at_least, items, one_of
from kbroker.config.values import CLASS, INT, LIST, LONG, LONG_MAX, STRING

# fmt: off
ROWS = (
    ConfigKey("alter.log.dirs.replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of moves between log directories is measured."),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of moves between log directories is measured."),
    ConfigKey("client.quota.callback.class", CLASS, None, None, LOW, READ_ONLY,
        "Class that decides which quota a client has."),
    ConfigKey("controller.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of metadata changes is measured."),
    ConfigKey("controller.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of metadata changes is measured."),
    ConfigKey("kafka.metrics.polling.interval.secs", INT, 10, at_least(1), LOW, READ_ONLY,
        "How often the classes of kafka.metrics.reporters read the metrics."),
    ConfigKey("kafka.metrics.reporters", LIST, (), items(), LOW, READ_ONLY,
        "Classes that report the broker's older metrics."),
    ConfigKey("kbroker.log.format", STRING, "text", one_of("text", "json"), LOW, READ_ONLY,
        "kbroker's own. Form of the log's lines: text, or a JSON object each."),
    ConfigKey("kbroker.metrics.listener", STRING, "", address, MEDIUM, READ_ONLY,
        "kbroker's own. HOST:PORT on which /metrics is served for Prometheus; nothing for nowhere."),
    ConfigKey("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), items(), LOW,
        CLUSTER_WIDE,
        "Classes that report the broker's metrics."),
    ConfigKey("metrics.num.samples", INT, 2, at_least(1), LOW, READ_ONLY,
        "Samples over which a metric is computed."),
    ConfigKey("metrics.recording.level", STRING, "INFO", None, LOW, READ_ONLY,
        "Most detailed level of metrics that is recorded: INFO, DEBUG or TRACE."),
    ConfigKey("metrics.sample.window.ms", LONG, 30_000, at_least(1), LOW, READ_ONLY,
        "Length of a sample over which a metric is computed."),
    ConfigKey("quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of a client is measured."),
    ConfigKey("quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of a client is measured."),
    ConfigKey("replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Windows over which the rate of throttled replication is measured."),
    ConfigKey("replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window in which the rate of throttled replication is measured."),
    ConfigKey("telemetry.max.bytes", INT, 1 << 20, at_least(1), LOW, READ_ONLY,
        "Most bytes of metrics that a client may push at once (KIP-714)."),
)
# fmt: on

# fmt: off
DYNAMIC_ONLY = (
    ConfigKey("follower.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, PER_BROKER,
        "Bytes a second that a follower may fetch for throttled replicas."),
    ConfigKey("leader.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, PER_BROKER,
        "Bytes a second that a leader may send for throttled replicas."),
    ConfigKey("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, at_least(0), MEDIUM, PER_BROKER,
        "Bytes a second at which replicas may move between log directories."),
)
# fmt: on
