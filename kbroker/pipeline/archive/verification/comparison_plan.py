"""Decides which offsets of an archive can be compared with the broker."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, TopicInfo
from kbroker.pipeline.archive.offset_ranges import OffsetRange, subtract_ranges
from kbroker.pipeline.archive.verification.checks import comparable_ranges
from kbroker.pipeline.archive.verification.findings import Finding, difference, note
from kbroker.pipeline.archive.verification.scope import VerificationScope
from kbroker.pipeline.cluster_admin import ClusterAdmin


@dataclass
class ComparisonPlan:
    """The offsets to compare, and findings on those that cannot be compared."""

    ranges: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)
    compacted_topics: frozenset[str] = frozenset()  # from which the broker may have removed records
    findings: list[Finding] = field(default_factory=list)

    @property
    def bounds(self) -> dict[TopicPartition, OffsetRange]:
        """The range from the first to the last compared offset of each partition."""
        return {tp: OffsetRange(ranges[0].start, ranges[-1].end) for tp, ranges in self.ranges.items()}


def plan_comparison(
    cluster: ClusterAdmin, state: ArchiveState, scope: VerificationScope, require_broker: bool
) -> ComparisonPlan:
    """Plan the comparison. With `require_broker` a topic that is not at the broker is a difference."""
    archived = sorted({tp.topic for tp in state.covered if scope.has_topic(tp.topic)})
    topics = cluster.describe_topics(archived)
    findings: list[Finding] = []
    partitions: list[TopicPartition] = []
    for topic in archived:
        info = topics.get(topic)
        problem = _topic_problem(state.topics.get(topic), info)
        if problem:
            create = difference if require_broker else note
            findings.append(create("not compared", f"{problem}: not compared", topic=topic))
        elif info is not None:
            for tp in sorted(tp for tp in state.covered if tp.topic == topic):
                if tp.partition < info.partitions:
                    partitions.append(tp)
                else:
                    text = f"archived, but the broker's topic has {info.partitions} partitions"
                    findings.append(difference("unknown record", text, tp))
    log_starts = cluster.beginning_offsets(partitions)
    log_ends = cluster.end_offsets(partitions, bool(state.settings.get("committed_only")))
    for tp in partitions:
        offsets_after_end = subtract_ranges(scope.limit(state.covered[tp]), [OffsetRange(0, log_ends[tp])])
        if offsets_after_end:
            text = f"archived, but the broker's log ends at {log_ends[tp]}"
            findings.append(difference("unknown record", text, tp, offsets=offsets_after_end))
    ranges = comparable_ranges(state, scope, log_starts, log_ends)
    return ComparisonPlan(ranges, _compacted_topics(cluster, state, topics), findings)


def _topic_problem(archived: TopicInfo | None, info: TopicInfo | None) -> str:
    if info is None:
        return "the topic does not exist at the broker"
    if archived is not None and archived.topic_id and info.topic_id and archived.topic_id != info.topic_id:
        return f"the broker's topic was created again (its id is {info.topic_id} instead of {archived.topic_id})"
    return ""


def _compacted_topics(cluster: ClusterAdmin, state: ArchiveState, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics with log compaction, now or when they were archived."""
    policies = cluster.effective_configs("cleanup.policy", topics)
    archived_policies = {name: info.configs.get("cleanup.policy", "") for name, info in state.topics.items()}
    return frozenset(
        name for name, policy in policies.items() if "compact" in policy or "compact" in archived_policies.get(name, "")
    )
