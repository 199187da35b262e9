"""The regular expressions to which members of a consumer group subscribe, and their topics (pure).

Each is resolved once for all its members, in a thread, over the names of all topics: as in Kafka, internal ones too.
The result is a record of the group (key 16). A new one is resolved at once, and all of them again, at most every 10 s,
when there are new topics or ACLs. As in Kafka it has the topics that the client may describe whose heartbeat makes the
resolution due. Deleted topics need no resolution: a name without a topic has no partitions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.authorization.acl import Operation, ResourceType
from kbroker.authorization.authorizer import Access
from kbroker.common import KafkaError
from kbroker.coordinator.re2_pattern import Re2Pattern

REFRESH_INTERVAL_MS = 10_000
NO_TOPICS: frozenset[str] = frozenset()


class ResolvedRegex(NamedTuple):
    """The topics that match an expression. `version`: that of the metadata image, which each broker counts for itself;
    `timestamp_ms`: wall clock.
    """

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class GroupRegexes:
    """The expressions of one group. Replay changes `members` and `resolved`, the others are soft.

    `members`: the number of members that subscribe to each expression. `refreshed_version`: the image version for which
    this coordinator last resolved all of them, -1 if it has not.
    """

    members: Counter[str] = field(default_factory=Counter)
    resolved: dict[str, ResolvedRegex] = field(default_factory=dict)
    is_resolving: bool = False
    refreshed_version: int = -1

    def topics(self, regex: str | None) -> frozenset[str]:
        """Return the topics to which a member subscribes by its expression; none as long as it is not resolved."""
        resolved = self.resolved.get(regex) if regex else None
        return NO_TOPICS if resolved is None else resolved.topics

    def replace(self, old: str | None, new: str | None) -> None:
        """Count a member that had the expression `old`, and has `new`; None and "" for none."""
        if old:
            self.members[old] -= 1
            if not self.members[old]:
                del self.members[old]
        if new:
            self.members[new] += 1

    def due(self, topics_version: int, now_ms: int) -> list[str]:
        """Return the expressions that have to be resolved. `topics_version`: that in which a topic was last created."""
        if self.is_resolving or not self.members:
            return []
        unresolved = [regex for regex in self.members if regex not in self.resolved]
        if unresolved:
            return unresolved
        refreshed_ms = max(self.resolved[regex].timestamp_ms for regex in self.members)
        is_stale = self.refreshed_version < topics_version and now_ms >= refreshed_ms + REFRESH_INTERVAL_MS
        return list(self.members) if is_stale else []


def validate_regex(regex: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION if a member must not subscribe to an expression."""
    Re2Pattern(regex)


def match_blocking(regexes: Sequence[str], topics: Sequence[str], access: Access | None = None) -> list[frozenset[str]]:
    """Return the topics that each expression matches, none for one that another version of RE2 has accepted.

    `access`: of the client, None if it may describe all topics.
    """
    matches = []
    for regex in regexes:
        try:
            matched = Re2Pattern(regex).select_blocking(topics)
            matches.append(
                frozenset(
                    topic
                    for topic in matched
                    if access is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
                )
            )
        except KafkaError:
            matches.append(NO_TOPICS)
    return matches
