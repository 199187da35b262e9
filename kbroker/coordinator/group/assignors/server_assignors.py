"""The server-side assignors by name, as in the config `group.consumer.assignors`."""

from collections.abc import Mapping, Sequence
from functools import cache

from kbroker.coordinator.group.assignors.members import Assignor
from kbroker.coordinator.group.assignors.range import assign_range
from kbroker.coordinator.group.assignors.uniform import assign_uniform

SERVER_ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


@cache
def supported_assignors(names: tuple[str, ...]) -> Sequence[str]:
    """Return those of the configured assignors that kbroker has, all of its own if it has none of them.

    Kafka also loads classes of these names.
    """
    return [name for name in names if name in SERVER_ASSIGNORS] or list(SERVER_ASSIGNORS)
