"""Topic configs of message queues, which Kafka does not have: delay levels, filters of views, retries, dead letters.

*Delay levels* (kbroker.delay.levels) are the delays that the levels of the header DELAY mean, as in RocketMQ's
messageDelayLevel.

*The filter expression* of a view topic says which tags or keys its records have.

    expression  := "*" | alternative ("||" alternative)*
    alternative := TAG | "KEYS in (" KEY ("," KEY)* ")"

The tags are those of RocketMQ: a record has the tag TagA if its header TAGS is TagA. Its header KEYS has any number of
keys, separated by spaces.

*Retries and dead letters* are described by configs that clients read; the broker only validates them. The policy of a
topic and a group is stored on its retry topic. `errors.deadletterqueue.*` are the names of KIP-1191, which has the name
of the dead-letter topic among the configs of a share group.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from kbroker.config.config_def import CLUSTER_WIDE, MEDIUM, ConfigKey, Validator
from kbroker.config.validators import between
from kbroker.config.values import BOOLEAN, INT, STRING, ConfigError, ConfigType, Value, invalid_value
from kbroker.units import DURATION_UNITS_MS

DELAY_LEVELS = "kbroker.delay.levels"
# RocketMQ's.
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS = 100

_LEVEL = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)", re.ASCII)


@lru_cache(maxsize=64)
def levels_ms(text: str) -> tuple[int, ...]:
    """Return the delays of the levels from 1 on, in ms. Raises ValueError."""
    parts = text.split(" ")
    matches = [_LEVEL.fullmatch(part) for part in parts]
    if len(parts) > MAX_LEVELS or not all(matches):
        raise ValueError(f"Value must be 1 to {MAX_LEVELS} delays like 500ms, 10s, 5m, 2h or 1d, separated by spaces")
    return tuple(int(match[1]) * DURATION_UNITS_MS[match[2]] for match in matches if match)


def delay_levels(name: str, value: Value) -> None:
    """The validator of the config."""
    try:
        levels_ms(str(value))
    except ValueError as error:
        raise invalid_value(name, value, str(error)) from None


VIEW_OF = "kbroker.view.of"
VIEW_FILTER = "kbroker.view.filter"
VIEW_CONFIGS = frozenset({VIEW_OF, VIEW_FILTER})

EVERY_RECORD = "*"

MAX_EXPRESSION_CHARACTERS = 4096
MAX_TERMS = 256

_KEYS_IN = re.compile(r"KEYS\s+in\s*\(([^()]*)\)", re.IGNORECASE)
# What no tag or key of an expression contains.
_RESERVED = re.compile(r"[\s|&(),'\"*]")


class TagExpression(NamedTuple):
    """Selects records with one of the tags or one of the keys; all records if both are empty."""

    tags: frozenset[bytes] = frozenset()
    keys: frozenset[bytes] = frozenset()

    @property
    def selects_all(self) -> bool:
        return not self.tags and not self.keys


def parse_tag_expression(text: str) -> TagExpression:
    """Parse an expression. Raises ConfigError, with a message that says what is wrong."""
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise _invalid(f"{len(text)} characters are more than {MAX_EXPRESSION_CHARACTERS}")
    if text.strip() == EVERY_RECORD:
        return TagExpression()
    tags: set[bytes] = set()
    keys: set[bytes] = set()
    for alternative in text.split("||"):
        term = alternative.strip()
        listed = _KEYS_IN.fullmatch(term)
        if listed is None:
            tags.add(_term(term, "tag"))
        else:
            keys.update(_term(key.strip(), "key") for key in listed[1].split(","))
    if len(tags) + len(keys) > MAX_TERMS:
        raise _invalid(f"{len(tags) + len(keys)} tags and keys are more than {MAX_TERMS}")
    return TagExpression(frozenset(tags), frozenset(keys))


def _term(term: str, kind: str) -> bytes:
    if not term:
        raise _invalid(f"a {kind} is empty")
    if _RESERVED.search(term) is not None:
        raise _invalid(f"{term!r} is not a {kind}; expected * or, for example, TagA || TagB || KEYS in (key1, key2)")
    return term.encode()


def _invalid(reason: str) -> ConfigError:
    return ConfigError(f"Invalid value for {VIEW_FILTER}: {reason}")


def without_empty_view(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides without the view configs that an ordinary topic has by default.

    Tools that set all configs of a topic, or copy them to another one, also send an empty VIEW_OF.
    """
    kept = dict(overrides)
    if not kept.get(VIEW_OF, "").strip():
        kept.pop(VIEW_OF, None)
        if kept.get(VIEW_FILTER, "").strip() == EVERY_RECORD:
            del kept[VIEW_FILTER]
    return kept


def check_view_configs(names: Collection[str], expression: str) -> None:
    """Raise ConfigError if the configs of a topic are not those of a view, or mix both. `names`: its overrides."""
    if VIEW_OF not in names:
        if VIEW_FILTER in names:
            raise ConfigError(f"{VIEW_FILTER} requires {VIEW_OF}, which says of which topic the view is")
        return
    others = sorted(set(names) - VIEW_CONFIGS)
    if others:
        raise ConfigError(f"A view has only the configs of its source, and cannot have {', '.join(others)}")
    parse_tag_expression(expression)


def check_same_source(current: str | None, altered: str | None) -> None:
    """Raise ConfigError if a topic would become a view, or a view another one. Both are the values of VIEW_OF."""
    if altered == current:
        return
    if current is None:
        raise ConfigError(f"{VIEW_OF}: an existing topic cannot become a view; create the view as a new topic")
    raise ConfigError(f"{VIEW_OF}: a view keeps its source '{current}'; create a new view, or delete this one first")


RETRY_TOPIC = "kbroker.retry.topic"
RETRY_GROUP = "kbroker.retry.group"
RETRY_ATTEMPTS = "kbroker.retry.attempts"
RETRY_DELAYS = "kbroker.retry.delays.ms"
# Of a share group.
SHARE_RETRY_DELAYS = "kbroker.share.retry.delays.ms"
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


def optional_delays_ms(name: str, value: Value) -> None:
    """The same, or the empty string."""
    if value:
        delays_ms(name, value)


def _key(name: str, kind: ConfigType, default: Value, validator: Validator | None, documentation: str) -> ConfigKey:
    return ConfigKey(name, kind, default, validator, MEDIUM, CLUSTER_WIDE, documentation, (), None)


# fmt: off
RETRY_KEYS = (
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
