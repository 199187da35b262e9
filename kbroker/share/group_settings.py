"""The configs of share groups that the leaders of partitions apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.config.config_def import ConfigResourceType
from kbroker.metadata.features import SHARE_VERSION
from kbroker.share.delivery import DeliveryPolicy

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.config.group_config import GroupConfig
    from kbroker.metadata.image import MetadataImage

# The level of share.version with dead letters (KIP-1191).
DEAD_LETTERS_VERSION = 2

# The groups whose settings are remembered.
MAX_KNOWN = 1000


class GroupSettings(NamedTuple):
    """`dead_letter_topic`: "" for none."""

    config: GroupConfig
    delivery: DeliveryPolicy
    read_committed: bool
    dead_letter_topic: str


class ShareGroupSettings:
    """Finds the settings of each group. They are made again only after a change of configs."""

    def __init__(self, image: MetadataImage, config: Callable[[], BrokerConfig]) -> None:
        self._image = image
        self._config = config
        self._known: dict[str, tuple[object, GroupSettings]] = {}

    def of(self, group_id: str) -> GroupSettings:
        broker, overrides = self._config(), self._image.overrides(ConfigResourceType.GROUP, group_id)
        has_dead_letters = self._image.features.level(SHARE_VERSION) >= DEAD_LETTERS_VERSION
        source = (broker.values, overrides, has_dead_letters)
        known = self._known.get(group_id)
        if known is not None and known[0] == source:
            return known[1]
        config = broker.group_config(overrides)
        topic = config.errors_deadletterqueue_topic_name if has_dead_letters else ""
        delays = config.kbroker_share_retry_delays_ms
        delivery = DeliveryPolicy(
            config.share_delivery_count_limit,
            config.share_record_lock_duration_ms,
            config.share_partition_max_record_locks,
            tuple([int(delay) for delay in delays.split(",")]) if delays else (),
            bool(topic),
        )
        settings = GroupSettings(config, delivery, config.share_isolation_level == "read_committed", topic)
        if len(self._known) >= MAX_KNOWN:
            # Clients choose the names of groups.
            self._known.clear()
        self._known[group_id] = source, settings
        return settings
