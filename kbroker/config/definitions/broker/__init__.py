"""All broker configs, from the tables of the modules of this package."""

from kbroker.config.config_def import config_def
from kbroker.config.definitions.broker import (
    controller,
    groups,
    log,
    metrics,
    network,
    oauth,
    replication,
    sasl,
    share,
    ssl,
    tiered,
    transactions,
    zookeeper,
)

_AREAS = (
    controller,
    groups,
    log,
    metrics,
    network,
    oauth,
    replication,
    sasl,
    share,
    ssl,
    tiered,
    transactions,
    zookeeper,
)

BROKER_CONFIGS = config_def(row for area in _AREAS for row in area.KEYS)

# Kafka accepts these through IncrementalAlterConfigs only, and does not list them until they are set.
DYNAMIC_ONLY = config_def(metrics.DYNAMIC_ONLY)
