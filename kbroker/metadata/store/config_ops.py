"""The operation that writes the config overrides of a resource."""

from collections.abc import Mapping

from kbroker.config.config_resource import ConfigResource
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.metadata.store import znodes


def overrides_op(resource: ConfigResource, current: Mapping[str, str], altered: Mapping[str, str]) -> Op:
    """Return the operation that replaces the overrides of a resource. It has no node without overrides."""
    path, data = znodes.config_path(resource), znodes.encode(altered)
    return Delete(path) if not altered else Set(path, data) if current else Create(path, data)


def removal_ops(resource: ConfigResource, current: Mapping[str, str], name: str) -> list[Op]:
    """Return the operation that removes one override of a resource, none if it is not set."""
    if name not in current:
        return []
    return [overrides_op(resource, current, {other: value for other, value in current.items() if other != name})]
