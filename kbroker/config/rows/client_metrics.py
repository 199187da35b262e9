"""Client metrics subscriptions (KIP-714)."""

from kbroker.config.checks import client_match, items, metrics_interval
from kbroker.config.definition import CLUSTER_WIDE, MEDIUM, Row, table
from kbroker.config.values import INT, LIST

# fmt: off
CLIENT_METRICS_CONFIGS = table((
    Row("interval.ms", INT, 300_000, metrics_interval, MEDIUM, CLUSTER_WIDE,
        "How often clients push their metrics."),
    Row("match", LIST, (), client_match, MEDIUM, CLUSTER_WIDE,
        "Which clients push: attribute=regular expression, all of them must match."),
    Row("metrics", LIST, (), items(), MEDIUM, CLUSTER_WIDE,
        "Prefixes of the names of the metrics that are pushed; empty for none, * for all."),
))
# fmt: on
