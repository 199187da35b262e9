"""The state of a broker, as far as clients can see it."""

from collections.abc import Mapping
from typing import Any


def broker_state(broker: Mapping[str, Any] | None, controller_id: int) -> str:
    """Return the state of a broker of a DescribeCluster response; None for one that only partitions name.

    The controller knows a fenced broker, which serves no clients: it is probably down. A broker that is shutting down
    is running for clients, until it is fenced.
    """
    if broker is None:
        return "unknown"
    if broker.get("is_fenced"):
        return "fenced"
    return "controller" if broker["broker_id"] == controller_id else "running"
