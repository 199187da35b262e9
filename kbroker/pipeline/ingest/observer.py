"""Archives the configs of topics, and the offsets of the groups that consume them.

Both are read once a minute. The next commit of records includes what has changed of its topic. A topic without new
records gets a commit of its own at the following observation.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kbroker.archive.topic_state import GroupOffsets, TopicInfo, TopicState
from kbroker.pipeline.cluster_admin import BrokerUnavailableError, ClusterAdmin
from kbroker.pipeline.ingest.batch_plan import has_same_id
from kbroker.pipeline.ingest.topic_tables import TableCommit, TopicTables


class TopicObservation(NamedTuple):
    """A topic as the broker described it, and its groups, at a time."""

    info: TopicInfo
    groups: GroupOffsets
    time_ms: int


def with_observation(state: TopicState, observed: TopicObservation | None) -> TopicState:
    """Return the state with what was observed, or the same one if nothing has changed.

    A topic that was deleted and created again is another one, which the archive does not have.
    """
    if observed is None or not has_same_id(state.topic, observed.info):
        return state
    if (state.topic, state.groups) == (observed.info, observed.groups):
        return state
    return replace(state, topic=observed.info, groups=observed.groups, groups_ms=observed.time_ms)


class TopicObserver:
    """Observes the topics of a run every `interval_s` seconds."""

    def __init__(
        self, cluster: ClusterAdmin, tables: TopicTables, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._tables = tables
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = clock() + interval_s
        self._pending: dict[str, TopicObservation] = {}

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._next_s

    def take(self, topic: str) -> TopicObservation | None:
        """Return what the next commit of a topic includes."""
        return self._pending.pop(topic, None)

    def observe(self, is_last: bool = False) -> None:
        """Read topics and groups, and commit what no commit of records has included since the observation before.

        With `is_last` everything is committed. Does nothing if no broker responds. Raises PipelineError, also if the
        broker denies the requests.
        """
        self._next_s = self._clock() + self._interval_s
        self._commit()
        names = sorted(table.topic for table in self._tables.tables())
        try:
            topics, groups = self._cluster.describe_topics(names), self._cluster.committed_offsets(names)
        except BrokerUnavailableError:
            return
        time_ms = time.time_ns() // 1_000_000
        for topic, info in topics.items():
            of_topic = {group: offsets[topic] for group, offsets in groups.items() if topic in offsets}
            self._pending[topic] = TopicObservation(info, of_topic, time_ms)
        if is_last:
            self._commit()

    def _commit(self) -> None:
        pending, self._pending = self._pending, {}
        self._tables.commit("observe", [TableCommit(topic, _build(each)) for topic, each in pending.items()])


def _build(observed: TopicObservation) -> Callable[[TopicState], TopicState | None]:
    def build(state: TopicState) -> TopicState | None:
        changed = with_observation(state, observed)
        return None if changed is state else changed

    return build
