"""The server-side assignors by name, as in the config `group.consumer.assignors`."""

from collections.abc import Mapping

from kbroker.coordinator.group.assignors.members import Assignor
from kbroker.coordinator.group.assignors.range import assign_range
from kbroker.coordinator.group.assignors.uniform import assign_uniform

SERVER_ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
