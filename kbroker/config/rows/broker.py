"""All broker configs, from the tables by area."""

from kbroker.config.definition import table
from kbroker.config.rows import (
    broker_controller,
    broker_groups,
    broker_log,
    broker_metrics,
    broker_network,
    broker_oauth,
    broker_replication,
    broker_sasl,
    broker_share,
    broker_ssl,
    broker_tiered,
    broker_transactions,
)

_AREAS = (
    broker_controller,
    broker_groups,
    broker_log,
    broker_metrics,
    broker_network,
    broker_oauth,
    broker_replication,
    broker_sasl,
    broker_share,
    broker_ssl,
    broker_tiered,
    broker_transactions,
)

BROKER_CONFIGS = table(row for area in _AREAS for row in area.ROWS)

# Kafka takes these through AlterConfigs only and does not list them until they are set.
DYNAMIC_ONLY = table(broker_metrics.DYNAMIC_ONLY)
