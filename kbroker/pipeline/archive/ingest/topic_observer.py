"""Topic configs and group offsets beside the data: looked at now and then, committed where they changed."""

import time
from collections.abc import Callable

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.batch import news
from kbroker.pipeline.archive.manifest.model import ArchiveState, GroupOffsets, ManifestCommit, TopicInfo
from kbroker.pipeline.kafka import BrokerGone, Cluster
from kbroker.pipeline.storage.storage import Storage

EVERY_S = 60.0


class Observer:
    """Looks at the archived topics and the groups that read them, at most every `every_s` seconds."""

    def __init__(
        self,
        bootstrap: str,
        storage: Storage,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = Cluster(bootstrap)
        self._archive = Archive.open(storage)
        self._every_s = every_s
        self._clock = clock
        self._next = clock() + every_s

    @property
    def due(self) -> bool:
        """It is time to look again."""
        return self._clock() >= self._next

    def observe(self) -> int:
        """Commits what is new, and gives the number of the archive's last commit. Where nobody answers nothing happens:
        another time is as good."""
        self._next = self._clock() + self._every_s
        state = self._archive.state()
        names = archived_topics(state)
        if not names:
            return state.number
        try:
            topics, groups = self._cluster.topics(names), self._cluster.groups(names)
        except BrokerGone:
            return state.number
        return self._archive.commit(lambda now: observation(now, topics, groups, time.time_ns() // 1_000_000)).number

    def close(self) -> None:
        """Ends the connection."""
        self._cluster.close()


def archived_topics(state: ArchiveState) -> list[str]:
    """The topics of which the archive has anything, or knows it to be gone."""
    return sorted({partition.topic for partition in state.covered} | {gap.topic for gap in state.gaps})


def observation(
    state: ArchiveState, topics: dict[str, TopicInfo], groups: GroupOffsets, now_ms: int
) -> ManifestCommit | None:
    """The commit of what was seen; None where the archive knows it. A topic that was created anew stays as it was."""
    same = {name: info for name, info in topics.items() if _is_same(state.topics.get(name), info)}
    changed = news(state, same)
    seen = None if _plain(groups) == _plain(state.groups) else groups
    if changed is None and seen is None:
        return None
    return ManifestCommit(kind="observe", time_ms=now_ms, topics=changed, groups=seen)


def _is_same(known: TopicInfo | None, info: TopicInfo) -> bool:
    return known is None or not known.topic_id or known.topic_id == info.topic_id


def _plain(groups: GroupOffsets) -> dict[str, dict[str, dict[int, int]]]:
    return {group: {topic: dict(offsets) for topic, offsets in topics.items()} for group, topics in groups.items()}
