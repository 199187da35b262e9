"""Archives topic configs and committed group offsets periodically, when they have changed."""

import time
from collections.abc import Callable

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.consistency import changed_topics
from kbroker.pipeline.archive.manifest.model import ArchiveState, GroupOffsets, ManifestCommit, TopicInfo
from kbroker.pipeline.cluster_admin import BrokerUnavailableError, ClusterAdmin
from kbroker.pipeline.storage.storage import Storage


class TopicObserver:
    """Observes the archived topics and the groups that consume them, every `interval_s` seconds."""

    def __init__(
        self, bootstrap: str, storage: Storage, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = ClusterAdmin(bootstrap)
        self._archive = Archive.open(storage)
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = clock() + interval_s

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._next_s

    def observe(self) -> int:
        """Commit what has changed, and return the number of the archive's last commit.

        Does nothing if no broker responds: the next observation includes the same changes.
        """
        self._next_s = self._clock() + self._interval_s
        state = self._archive.state()
        names = _archived_topics(state)
        if not names:
            return state.commit_number
        try:
            topics, groups = self._cluster.describe_topics(names), self._cluster.committed_offsets(names)
        except BrokerUnavailableError:
            return state.commit_number
        time_ms = time.time_ns() // 1_000_000
        return self._archive.commit(lambda state: observation(state, topics, groups, time_ms)).commit_number

    def close(self) -> None:
        self._cluster.close()


def _archived_topics(state: ArchiveState) -> list[str]:
    return sorted({tp.topic for tp in state.covered} | {gap.topic for gap in state.gaps})


def observation(
    state: ArchiveState, topics: dict[str, TopicInfo], groups: GroupOffsets, time_ms: int
) -> ManifestCommit | None:
    """Return a commit with the changed topics and groups, or None. Ignores topics that were deleted and recreated."""
    same = {name: info for name, info in topics.items() if _has_same_id(state.topics.get(name), info)}
    new_topics = changed_topics(state, same)
    new_groups = None if groups == state.groups else groups
    if new_topics is None and new_groups is None:
        return None
    return ManifestCommit(kind="observe", time_ms=time_ms, topics=new_topics, groups=new_groups)


def _has_same_id(archived: TopicInfo | None, info: TopicInfo) -> bool:
    return archived is None or not archived.topic_id or archived.topic_id == info.topic_id
