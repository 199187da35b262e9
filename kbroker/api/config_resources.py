"""The resources that have configs: how their names are checked, and how their overrides are changed.

Shared by the config APIs (keys 32, 33, 44, 74). Brokers answer for themselves and for the brokers' common
default (the empty name), not for each other; admin clients send these requests to the broker concerned.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kbroker.api.context import Services
from kbroker.common import KafkaError
from kbroker.config.acting import without_effect
from kbroker.config.alter import AlterConfigOp, alter_broker, alter_client_metrics, alter_group, alter_topic
from kbroker.config.broker_loggers import alter_loggers
from kbroker.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from kbroker.metadata.topics.topic_plans import validate_topic_name
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
RESOURCE_TYPES = (
    GROUP_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    LOGGER_RESOURCE,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
)

log = EventLogger("kbroker.config")

Overrides = dict[str, str]


class Alteration(NamedTuple):
    kind: int
    name: str
    changes: Sequence[AlterConfigOp]


async def alter_each(
    services: Services, wanted: Sequence[Alteration], *, replace: bool, validate_only: bool
) -> list[KafkaError | None]:
    """Each resource succeeds or fails by itself; one that is named twice is refused both times."""
    times = Counter(alteration[:2] for alteration in wanted)
    outcomes: list[KafkaError | None] = []
    for alteration in wanted:
        try:
            if times[alteration[:2]] > 1:
                raise invalid("Each resource must appear at most once.")
            await _alter(services, *alteration, replace, validate_only)
            outcomes.append(None)
        except KafkaError as refusal:
            outcomes.append(refusal)
    return outcomes


async def _alter(
    services: Services, kind: int, name: str, changes: Sequence[AlterConfigOp], replace: bool, validate_only: bool
) -> None:
    """Changes a resource's overrides; with `replace` they begin from none. Raises KafkaError."""
    if kind == LOGGER_RESOURCE and not replace:
        _check_node(services, name)
        alter_loggers(changes, validate_only=validate_only)
        return
    decide = _decision(services, kind, name, changes)
    new: Overrides = {}

    def change(current: Overrides) -> Overrides:
        nonlocal new
        new = decide({} if replace else current)
        return new

    if validate_only:
        change(services.metadata.overrides(kind, name))
        _check_exists(services, kind, name)
        return
    await services.controller.alter_configs(kind, name, change)
    touched = {changed.name: new[changed.name] for changed in changes if changed.name in new}
    for line in without_effect(kind, touched):
        log.warning("config without effect", reason=line)


def _decision(
    services: Services, kind: int, name: str, changes: Sequence[AlterConfigOp]
) -> Callable[[Overrides], Overrides]:
    """What to do with the overrides of a resource whose name is in order. Raises KafkaError."""
    if kind == BROKER_RESOURCE:
        if name:
            _check_node(services, name)
        return lambda current: alter_broker(current, changes, services.config, every=not name)
    if kind == TOPIC_RESOURCE:
        if not name:
            raise invalid("Default topic resources are not allowed.")
        validate_topic_name(name)
        return lambda current: alter_topic(current, changes, services.config)
    if kind == GROUP_RESOURCE:
        if not name:
            raise invalid("Default group resources are not allowed.")
        return lambda current: alter_group(current, changes, services.config)
    if kind == CLIENT_METRICS_RESOURCE:
        if not name:
            raise invalid("Subscription name can't be empty")
        return lambda current: alter_client_metrics(current, changes)
    raise invalid(f"Unknown resource type {kind}")


def _check_exists(services: Services, kind: int, name: str) -> None:
    if kind == TOPIC_RESOURCE and name not in services.metadata.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _check_node(services: Services, name: str) -> None:
    number = node_number(name)
    if number is None:
        raise invalid(f"Node id must be an integer, but it is: {name}")
    if number != services.node_id:
        raise invalid(f"Unexpected broker id, expected {services.node_id}, but received {name}")


def node_number(name: str) -> int | None:
    """The id that a broker resource's name stands for."""
    return int(name) if name.isascii() and name.removeprefix("-").isdigit() and len(name) < 12 else None


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
