"""The configs of a topic that affect leader elections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.replication.partition_change import Election, TopicRules

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import MetadataImage, WriteHealth

UNCLEAN_ELECTION = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
ELECTION_CONFIGS = frozenset({UNCLEAN_ELECTION, MIN_ISR})


class NewConfigs(NamedTuple):
    """The overrides that a resource is about to have."""

    resource: ConfigResource
    overrides: Mapping[str, str]


def topic_rules(
    image: MetadataImage,
    config: BrokerConfig,
    topic_id: bytes,
    new_configs: NewConfigs | None,
    write_health: Mapping[int, WriteHealth],
) -> TopicRules:
    """Return the rules of a topic. `new_configs` replace the overrides of their resource in the image."""
    topic = image.topics_by_id.get(topic_id)
    resources = [ConfigResource(ConfigResourceType.BROKER, "")]
    if topic is not None:
        resources.append(ConfigResource(ConfigResourceType.TOPIC, topic.name))
    configs: dict[str, str] = {}
    for resource in resources:
        is_new = new_configs is not None and new_configs.resource == resource
        configs |= new_configs.overrides if new_configs is not None and is_new else image.overrides(*resource)
    unclean, min_isr = configs.get(UNCLEAN_ELECTION), configs.get(MIN_ISR)
    is_unclean = bool(config.get(UNCLEAN_ELECTION)) if unclean is None else unclean == "true"
    return TopicRules(
        Election.UNCLEAN if is_unclean else Election.ONLINE,
        int(str(config.get(MIN_ISR) if min_isr is None else min_isr)),
        write_health,
    )
