"""The JSON output of `kbroker archive list` and `describe`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cli.archive.tables import DescriptionOptions, UncommittedFiles, select_files, timestamp_range

if TYPE_CHECKING:
    from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
    from kbroker.pipeline.archive.report import PartitionReport, TopicReport


def archive_json(
    root: str, state: "ArchiveState", topics: "Sequence[TopicReport]", partitions: bool = False
) -> dict[str, Any]:
    return {
        "archive": root,
        "commit": state.commit_number,
        "committed_ms": state.time_ms,
        "settings": dict(state.settings),
        "topics": [topic_json(topic, partitions) for topic in topics],
    }


def description_json(
    root: str,
    state: "ArchiveState",
    topics: "Sequence[TopicReport]",
    uncommitted: UncommittedFiles,
    options: DescriptionOptions,
) -> dict[str, Any]:
    """Return the complete description; `files` and `groups` are null unless requested."""
    return archive_json(root, state, topics, options.partitions) | {
        "files": list(map(_file_json, select_files(state, topics))) if options.files else None,
        "group_count": len(state.groups),
        "groups_ms": state.groups_ms if state.groups else None,
        "groups": state.groups if options.groups else None,
        "leftovers": list(uncommitted.leftovers),
        "foreign": list(uncommitted.foreign),
    }


def topic_json(topic: "TopicReport", partitions: bool = True) -> dict[str, Any]:
    """Return a topic with its partitions, or with their number only."""
    return {
        "topic": topic.topic,
        "topic_id": (topic.info and topic.info.topic_id) or None,
        "configs": dict(topic.info.configs) if topic.info else None,
        "rows": topic.rows,
        "bytes": topic.bytes,
        "file_bytes": topic.file_bytes,
        "files": topic.files,
        "dates": list(topic.dates),
        "offsets": topic.offsets,
        "offsets_without_record": topic.without_record,
        "gaps": [gap._asdict() for gap in topic.gaps],
        "from_ms": topic.from_ms,
        "to_ms": topic.to_ms,
        "partitions": list(map(_partition_json, topic.partitions)) if partitions else len(topic.partitions),
    }


def _partition_json(partition: "PartitionReport") -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "covered": [list(offsets) for offsets in partition.covered],
        "rows": partition.rows,
        "bytes": partition.bytes,
        "files": partition.files,
        "offsets": partition.offsets,
        "offsets_without_record": partition.without_record,
        "gaps": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in partition.gaps],
        "from_ms": partition.from_ms,
        "to_ms": partition.to_ms,
    }


def _file_json(file: "DataFile") -> dict[str, Any]:
    from_ms, to_ms = timestamp_range(file)
    return {
        "path": file.path,
        "rows": file.rows,
        "file_bytes": file.size,
        "sha256": file.sha256,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "partitions": {
            stats.partition: {"first": stats.first, "last": stats.last, "rows": stats.rows} for stats in file.partitions
        },
    }
