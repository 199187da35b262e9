"""RetryPolicy: how often, and after which delays, a group retries the failed records of a topic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.config.queue_configs import (
    DEAD_LETTER_TOPIC,
    DEFAULT_ATTEMPTS,
    RETRY_ATTEMPTS,
    RETRY_DELAYS,
    RETRY_GROUP,
    RETRY_LADDER_MS,
    RETRY_TOPIC,
    delays_ms,
    optional_topic,
)
from kbroker.config.queue_configs import MAX_ATTEMPTS as MAX_ATTEMPTS
from kbroker.config.values import ConfigError

# The default of errors.deadletterqueue.topic.name.prefix (KIP-1191).
DEAD_LETTER_PREFIX = "dlq."

_ILLEGAL_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")


class PolicyError(ValueError):
    """A malformed retry policy."""


def retry_topic_name(topic: str, group: str) -> str:
    """Return the name of a retry topic, TOPIC-GROUP-retry. Characters that topics cannot have become `_`."""
    return f"{topic}-{_ILLEGAL_IN_TOPIC.sub('_', group)}-retry"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The retry policy of a topic and a group.

    A record is processed at most `attempts` times, including the first one. Before each retry it waits in `retry_topic`
    for the next of `delays_ms` (milliseconds); the last delay repeats. After the last failed attempt it goes to
    `dead_letter_topic`. The default names of these topics are those of `kbroker retry create`. Raises PolicyError.
    """

    topic: str
    group: str
    attempts: int = DEFAULT_ATTEMPTS
    delays_ms: tuple[int, ...] = RETRY_LADDER_MS
    retry_topic: str = ""
    dead_letter_topic: str = ""

    def __post_init__(self) -> None:
        if not self.topic or not self.group:
            raise PolicyError("a retry policy needs a topic and a group")
        object.__setattr__(self, "delays_ms", tuple(self.delays_ms))
        object.__setattr__(self, "retry_topic", self.retry_topic or retry_topic_name(self.topic, self.group))
        object.__setattr__(self, "dead_letter_topic", self.dead_letter_topic or f"{DEAD_LETTER_PREFIX}{self.topic}")
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise PolicyError(f"attempts must be a whole number, not {self.attempts!r}")
        if not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise PolicyError(f"attempts must be between 1 and {MAX_ATTEMPTS}, not {self.attempts}")
        if not self.delays_ms:
            raise PolicyError("a retry policy needs at least one delay")
        names = (self.topic, self.retry_topic, self.dead_letter_topic)
        try:
            delays_ms(RETRY_DELAYS, ",".join(map(str, self.delays_ms)))
            for name in names:
                optional_topic("topic", name)
        except ConfigError as error:
            raise PolicyError(str(error)) from None
        if len(set(names)) < len(names):
            raise PolicyError(f"the topic, retry topic and dead-letter topic must be different: {', '.join(names)}")

    @property
    def topics(self) -> list[str]:
        """The topics that a consumer of the group subscribes to."""
        return [self.topic, self.retry_topic]

    def delay_ms(self, attempt: int) -> int:
        """Return the delay in milliseconds after the attempt with this number, from 1, has failed."""
        return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]

    def to_configs(self) -> dict[str, str]:
        """Return the configs of the retry topic that store the policy."""
        return {
            RETRY_TOPIC: self.topic,
            RETRY_GROUP: self.group,
            RETRY_ATTEMPTS: str(self.attempts),
            RETRY_DELAYS: ",".join(map(str, self.delays_ms)),
            DEAD_LETTER_TOPIC: self.dead_letter_topic,
        }

    @classmethod
    def from_configs(cls, retry_topic: str, configs: Mapping[str, str | None]) -> "RetryPolicy":
        """Return the policy that a retry topic's configs store. Raises PolicyError if it stores none."""
        if not configs.get(RETRY_TOPIC):
            raise PolicyError(f"{retry_topic} stores no retry policy: {RETRY_TOPIC} is not set")
        try:
            attempts = int(configs.get(RETRY_ATTEMPTS) or DEFAULT_ATTEMPTS)
            stored = configs.get(RETRY_DELAYS)
            delays = tuple(int(delay) for delay in stored.split(",")) if stored else RETRY_LADDER_MS
        except ValueError as error:
            raise PolicyError(f"{retry_topic} stores a malformed retry policy: {error}") from None
        return cls(
            configs.get(RETRY_TOPIC) or "",
            configs.get(RETRY_GROUP) or "",
            attempts,
            delays,
            retry_topic,
            configs.get(DEAD_LETTER_TOPIC) or "",
        )
