"""Client metrics subscriptions (KIP-714)."""

from kbroker.config.config_def import CLUSTER_WIDE, MEDIUM, ConfigKey, config_def
from kbroker.config.validators import client_match, items, metrics_interval
from kbroker.config.values import INT, LIST

# fmt: off
CLIENT_METRICS_CONFIGS = config_def((
    ConfigKey("interval.ms", INT, 300_000, metrics_interval, MEDIUM, CLUSTER_WIDE,
        "How often clients push their metrics."),
    ConfigKey("match", LIST, (), client_match, MEDIUM, CLUSTER_WIDE,
        "Which clients push: attribute=regular expression, all of them must match."),
    ConfigKey("metrics", LIST, (), items(), MEDIUM, CLUSTER_WIDE,
        "Prefixes of the names of the metrics that are pushed; empty for none, * for all."),
))
# fmt: on
