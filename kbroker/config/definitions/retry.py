"""Topic configs that describe retries and dead letters. Clients read them; the broker only validates them.

The policy of a topic and a group is stored on its retry topic. `errors.deadletterqueue.*` are the names of KIP-1191,
which has the name of the dead-letter topic among the configs of a share group.
"""

import re
from collections.abc import Mapping

from kbroker.config.config_def import CLUSTER_WIDE, MEDIUM, ConfigKey, Validator
from kbroker.config.validators import between
from kbroker.config.values import BOOLEAN, INT, STRING, ConfigError, ConfigType, Value, invalid_value

RETRY_TOPIC = "kbroker.retry.topic"
RETRY_GROUP = "kbroker.retry.group"
RETRY_ATTEMPTS = "kbroker.retry.attempts"
RETRY_DELAYS = "kbroker.retry.delays.ms"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
DEAD_LETTER_ENABLE = "errors.deadletterqueue.group.enable"

MAX_ATTEMPTS = 1000
MAX_DELAY_MS = 40 * 86_400_000  # 40 days, the longest time that a delayed record may wait
# RocketMQ retries 16 times, with the steps of its ladder from level 3 on: 10s 30s 1m 2m ... 10m 20m 30m 1h 2h.
RETRY_LADDER_MS = (10_000, 30_000, *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)))
DEFAULT_ATTEMPTS = len(RETRY_LADDER_MS) + 1

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def optional_topic(name: str, value: Value) -> None:
    """The name of a topic, or the empty string."""
    if value and (not isinstance(value, str) or not _LEGAL_TOPIC.fullmatch(value) or value in (".", "..")):
        raise invalid_value(name, value, "Value must be the name of a topic or empty")


def delays_ms(name: str, value: Value) -> None:
    """Whole milliseconds, each at most MAX_DELAY_MS, separated by commas.

    The type is not a list, whose duplicates would be dropped (KIP-1161).
    """
    parts = [part.strip() for part in str(value).split(",")]
    if not 1 <= len(parts) <= MAX_ATTEMPTS:
        raise invalid_value(name, value, f"Value must be a list of 1 to {MAX_ATTEMPTS} delays")
    for part in parts:
        if not (part.isascii() and part.isdigit()) or len(part) > 18 or int(part) > MAX_DELAY_MS:
            raise invalid_value(name, value, f"A delay must be whole milliseconds between 0 and {MAX_DELAY_MS}")


def _key(name: str, kind: ConfigType, default: Value, validator: Validator | None, documentation: str) -> ConfigKey:
    return ConfigKey(name, kind, default, validator, MEDIUM, CLUSTER_WIDE, documentation, (), None)


# fmt: off
KEYS = (
    _key(DEAD_LETTER_ENABLE, BOOLEAN, False, None,
        "Whether the topic is a dead-letter topic (KIP-1191). Clients and tools find it by this."),
    _key(DEAD_LETTER_TOPIC, STRING, "", optional_topic,
        "Only in kbroker, for retry topics: the dead-letter topic, which gets records whose last attempt failed. In "
        "Kafka 4.4 share groups have a config with this name (KIP-1191)."),
    _key(RETRY_ATTEMPTS, INT, DEFAULT_ATTEMPTS, between(1, MAX_ATTEMPTS),
        "Only in kbroker, for retry topics: how many times a record is processed, the first time included. Consumers "
        "read and apply it."),
    _key(RETRY_DELAYS, STRING, ",".join(map(str, RETRY_LADDER_MS)), delays_ms,
        "Only in kbroker, for retry topics: the delay before each retry in milliseconds; the last one repeats. "
        "Consumers read and apply it. The default is RocketMQ's."),
    _key(RETRY_GROUP, STRING, "", None,
        "Only in kbroker, for retry topics: the group whose failed records are in the topic."),
    _key(RETRY_TOPIC, STRING, "", optional_topic,
        "Only in kbroker. If set, the topic is a retry topic, and this is the topic in which its records failed."),
)
# fmt: on


def validate_retry_configs(values: Mapping[str, Value]) -> None:
    """Validate a retry topic's configs together. Raises ConfigError."""
    names = (RETRY_TOPIC, RETRY_GROUP, DEAD_LETTER_TOPIC)
    missing = [name for name in names if not values[name]]
    if len(missing) == len(names):
        return
    if missing:
        present = next(name for name in names if values[name])
        raise ConfigError(f"a retry policy needs {', '.join(names)}: {present} is set, but not {', '.join(missing)}")
    if values[RETRY_TOPIC] == values[DEAD_LETTER_TOPIC]:
        raise ConfigError(
            f"{RETRY_TOPIC} and {DEAD_LETTER_TOPIC} must be different topics, not both {values[RETRY_TOPIC]}"
        )
    policy = values["cleanup.policy"]
    if isinstance(policy, tuple) and "compact" in policy:
        raise ConfigError("a retry topic cannot be compacted: failed records with the same key would be lost")
