"""The configs of share groups that the leaders of partitions apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.config.config_def import ConfigResourceType, broker_defaults, parse_configs
from kbroker.config.definitions.no_effect import GROUP_CONFIGS
from kbroker.config.queue_configs import DEAD_LETTER_TOPIC
from kbroker.share.delivery import DeliveryPolicy

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import MetadataImage

SHARE_VERSION = "share.version"
# The level of KIP-1191.
DEAD_LETTERS_VERSION = 2
SHARE_RETRY_DELAYS = "kbroker.share.retry.delays.ms"


class GroupSettings(NamedTuple):
    """`auto_offset_reset`: earliest, latest or by_duration:P... `dead_letter_topic`: "" for none (KIP-1191)."""

    delivery: DeliveryPolicy
    read_committed: bool
    auto_offset_reset: str
    renewal_enabled: bool
    dead_letter_topic: str
    copies_dead_letters: bool


class ShareGroupSettings:
    """Finds the settings of each group. They are parsed again only after a change of configs."""

    def __init__(self, image: MetadataImage, config: Callable[[], BrokerConfig]) -> None:
        self._image = image
        self._config = config
        self._parsed: dict[str, tuple[object, object, bool, GroupSettings]] = {}

    def of(self, group_id: str) -> GroupSettings:
        config, overrides = self._config(), self._image.overrides(ConfigResourceType.GROUP, group_id)
        has_dead_letters = self._image.features.levels.get(SHARE_VERSION, 0) >= DEAD_LETTERS_VERSION
        known = self._parsed.get(group_id)
        if known is not None and known[:3] == (config.values, overrides, has_dead_letters):
            return known[3]
        values = broker_defaults(GROUP_CONFIGS, config.values) | parse_configs(GROUP_CONFIGS, overrides, "group")

        def number(name: str) -> int:
            value = values[name]
            assert isinstance(value, int)
            return value

        topic = str(values.get(DEAD_LETTER_TOPIC) or "") if has_dead_letters else ""
        delays = str(values.get(SHARE_RETRY_DELAYS) or "")
        settings = GroupSettings(
            DeliveryPolicy(
                delivery_count_limit=number("share.delivery.count.limit"),
                lock_duration_ms=number("share.record.lock.duration.ms"),
                max_record_locks=number("share.partition.max.record.locks"),
                retry_delays_ms=tuple([int(delay) for delay in delays.split(",") if delay.strip()]),
                has_dead_letters=bool(topic),
            ),
            values["share.isolation.level"] == "read_committed",
            str(values["share.auto.offset.reset"]),
            bool(values["share.renew.acknowledge.enable"]),
            topic,
            bool(values.get("errors.deadletterqueue.copy.record.enable")),
        )
        self._parsed[group_id] = (config.values, overrides, has_dead_letters, settings)
        return settings
