"""The internal topics of the coordinators, with the configs that these require."""

from typing import TYPE_CHECKING

from kbroker.metadata.topics.create_topics import NewTopic
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig


def new_internal_topic(name: str, config: "BrokerConfig") -> NewTopic:
    """Return __consumer_offsets or __transaction_state with the properties in the broker's configs."""
    if name == GROUP_METADATA_TOPIC:
        return NewTopic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
    return NewTopic(
        name,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
    )
