"""Checks of topic configs that depend on the topic's own name."""

from collections.abc import Mapping

from kbroker.config.definitions.retry import DEAD_LETTER_TOPIC, RETRY_TOPIC
from kbroker.config.topic_config import check_internal_topic
from kbroker.config.values import ConfigError
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS


def check_topic_configs(name: str, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if the topic `name` cannot have one of these overrides, which are valid in themselves."""
    if name in INTERNAL_TOPICS:
        check_internal_topic(name, overrides)
    for config in (RETRY_TOPIC, DEAD_LETTER_TOPIC):
        other = overrides.get(config)
        if other == name:
            # A record whose last attempt has failed would start again, forever.
            raise ConfigError(f"{config} must be another topic, not '{name}' itself")
        if other in INTERNAL_TOPICS:
            raise ConfigError(f"{config} cannot be the internal topic '{other}'")
