"""Broker configs: quotas, metrics, telemetry and the format of the log."""

from kbroker.config.config_def import CLUSTER_WIDE, LOW, MEDIUM, READ_ONLY, ConfigKey
from kbroker.config.definitions.no_effect import NoEffect
from kbroker.config.validators import at_least, list_of, one_of, optional_address
from kbroker.config.values import CLASS, INT, LIST, LONG, LONG_MAX, STRING

# fmt: off
KEYS = (
    ConfigKey("alter.log.dirs.replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows over which the rate of moves between log directories is measured.",
        no_effect=NoEffect.ONE_LOG_DIRECTORY),
    ConfigKey("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of moves between log directories is measured.",
        no_effect=NoEffect.ONE_LOG_DIRECTORY),
    ConfigKey("client.quota.callback.class", CLASS, None, None, LOW, READ_ONLY,
        "Class that determines the quotas of clients.",
        no_effect=NoEffect.JAVA_CLASS),
    ConfigKey("controller.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows over which the rate of metadata changes is measured.",
        no_effect=NoEffect.NO_QUOTAS),
    ConfigKey("controller.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of metadata changes is measured.",
        no_effect=NoEffect.NO_QUOTAS),
    ConfigKey("kafka.metrics.polling.interval.secs", INT, 10, at_least(1), LOW, READ_ONLY,
        "How often the classes of kafka.metrics.reporters read the metrics.",
        no_effect=NoEffect.PROMETHEUS_METRICS),
    ConfigKey("kafka.metrics.reporters", LIST, (), list_of(), LOW, READ_ONLY,
        "Classes that report the broker's older (Yammer) metrics.",
        no_effect=NoEffect.PROMETHEUS_METRICS),
    ConfigKey("kbroker.log.format", STRING, "text", one_of("text", "json"), LOW, READ_ONLY,
        "Only in kbroker. Format of the log: text, or json for one JSON object per line."),
    ConfigKey("kbroker.metrics.listener", STRING, "", optional_address, MEDIUM, READ_ONLY,
        "Only in kbroker. HOST:PORT on which /metrics is served for Prometheus; empty to disable it."),
    ConfigKey("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), list_of(), LOW,
        CLUSTER_WIDE,
        "Classes that report the broker's metrics.",
        no_effect=NoEffect.PROMETHEUS_METRICS),
    ConfigKey("metrics.num.samples", INT, 2, at_least(1), LOW, READ_ONLY,
        "Number of samples from which a metric is computed.",
        no_effect=NoEffect.PROMETHEUS_METRICS),
    ConfigKey("metrics.recording.level", STRING, "INFO", None, LOW, READ_ONLY,
        "Most detailed level of metrics that is recorded: INFO, DEBUG or TRACE.",
        no_effect=NoEffect.PROMETHEUS_METRICS),
    ConfigKey("metrics.sample.window.ms", LONG, 30_000, at_least(1), LOW, READ_ONLY,
        "Length of a sample from which a metric is computed.",
        no_effect=NoEffect.PROMETHEUS_METRICS),
    ConfigKey("quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows over which the rate of a client is measured.",
        no_effect=NoEffect.NO_QUOTAS),
    ConfigKey("quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of a client is measured.",
        no_effect=NoEffect.NO_QUOTAS),
    ConfigKey("replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows over which the rate of throttled replication is measured."),
    ConfigKey("replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of throttled replication is measured."),
    ConfigKey("telemetry.max.bytes", INT, 1 << 20, at_least(1), LOW, READ_ONLY,
        "Maximum size of the metrics in one push of a client (KIP-714), in bytes.",
        no_effect=NoEffect.NO_CLIENT_TELEMETRY),
)
# fmt: on

# fmt: off
DYNAMIC_ONLY = (
    ConfigKey("follower.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum bytes per second that this broker fetches of throttled replicas that are not in sync (see "
        "follower.replication.throttled.replicas). Those in sync are fetched without a limit, but their bytes count."),
    ConfigKey("leader.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum bytes per second that this broker sends of throttled replicas to followers that are not in sync (see "
        "leader.replication.throttled.replicas). Those in sync are sent records without a limit, but their bytes "
        "count."),
    ConfigKey("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum bytes per second of moves between log directories.",
        no_effect=NoEffect.ONE_LOG_DIRECTORY),
)
# fmt: on
