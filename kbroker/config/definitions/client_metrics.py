"""The configs of client metrics subscriptions (KIP-714)."""

from kbroker.config.config_def import CLUSTER_WIDE, MEDIUM, ConfigKey, config_def
from kbroker.config.validators import client_match_patterns, list_of, metrics_interval
from kbroker.config.values import INT, LIST

# fmt: off
CLIENT_METRICS_CONFIGS = config_def((
    ConfigKey("interval.ms", INT, 300_000, metrics_interval, MEDIUM, CLUSTER_WIDE,
        "How often clients push their metrics. Of several subscriptions of a client the shortest interval counts."),
    ConfigKey("match", LIST, (), client_match_patterns, MEDIUM, CLUSTER_WIDE,
        "Clients that push metrics: attribute=regular expression pairs, all of which must match the whole value. The "
        "attributes are client_instance_id, client_id, client_software_name, client_software_version, "
        "client_source_address and client_source_port; the expressions have the syntax of RE2. Empty for all clients."),
    ConfigKey("metrics", LIST, (), list_of(), MEDIUM, CLUSTER_WIDE,
        "Name prefixes of the metrics that clients push; empty for none, * for all."),
))
# fmt: on
