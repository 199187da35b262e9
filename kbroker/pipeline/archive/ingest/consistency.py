"""Checks that the topics and the archive are still those with which a run started (pure)."""

from collections.abc import Iterable, Mapping

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.batch_ranges import resume_offsets
from kbroker.pipeline.archive.manifest.model import ArchiveState, TopicInfo
from kbroker.pipeline.errors import PipelineError


class TopicsChangedError(PipelineError):
    """A topic was deleted while the query read it; the query is restarted with the current topics."""


def require_untruncated_logs(archived: Mapping[TopicPartition, int], log_ends: Mapping[TopicPartition, int]) -> None:
    """Raise PipelineError if a log ends before an archived offset: it was truncated, or it is another log."""
    for tp, offset in sorted(archived.items()):
        if tp in log_ends and log_ends[tp] < offset:
            raise PipelineError(
                f"{tp} ends at offset {log_ends[tp]}, but had offsets up to {offset}: the broker lost records or has "
                f"other data; archive the topic into another directory"
            )


def require_single_run(
    resume: Mapping[TopicPartition, int], state: ArchiveState, partitions: Iterable[TopicPartition]
) -> None:
    """Raise PipelineError if another run has archived one of the partitions since `resume` was read."""
    current = resume_offsets(state)
    for tp in partitions:
        if current.get(tp) != resume.get(tp):
            raise PipelineError(
                f"another `kbroker archive run` has archived {tp} at the same time: only one may write to an archive; "
                f"this one stops, and no record was archived twice"
            )


def require_same_topics(state: ArchiveState, topics: Mapping[str, TopicInfo]) -> None:
    """Raise PipelineError if a topic was deleted and created again since it was archived."""
    for name, info in topics.items():
        archived = state.topics.get(name)
        if archived is not None and archived.topic_id and info.topic_id and archived.topic_id != info.topic_id:
            raise PipelineError(
                f"topic {name} was deleted and created again since it was archived (its id was {archived.topic_id} and "
                f"is now {info.topic_id}), so its offsets start again at 0: archive it into another directory"
            )


def changed_topics(state: ArchiveState, topics: Mapping[str, TopicInfo]) -> dict[str, TopicInfo] | None:
    """Return the topics whose information differs from the archive's; None if there are none."""
    return {name: info for name, info in topics.items() if state.topics.get(name) != info} or None
