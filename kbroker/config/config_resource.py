"""Config resources: the things that have configs, as DescribeConfigs and AlterConfigs name them."""

from enum import IntEnum
from typing import NamedTuple


class ConfigResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """`name` is a topic, a group, a subscription, or a broker id in digits; "" for the default of all brokers."""

    type: int
    name: str
