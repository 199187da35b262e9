"""The reports of a run: messages while it runs, and a summary at its end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kbroker.pipeline.archive.manifest.model import DataFile, Gap


@dataclass(frozen=True)
class Reporter:
    """Prints messages, one line each."""

    progress: Callable[[str], None]
    warn: Callable[[str], None]


@dataclass
class IngestSummary:
    """The totals of a run."""

    batches: int = 0
    files: int = 0
    file_bytes: int = 0
    records: dict[str, int] = field(default_factory=dict)  # by topic
    record_bytes: int = 0  # of keys and values
    gaps: list[Gap] = field(default_factory=list)
    last_commit: int = -1

    def add_batch(self, files: Sequence[DataFile], gaps: Sequence[Gap]) -> None:
        self.batches += 1
        self.gaps += gaps
        self.files += len(files)
        for file in files:
            self.file_bytes += file.size
            self.record_bytes += sum(stats.bytes for stats in file.partitions)
            self.records[file.topic] = self.records.get(file.topic, 0) + file.rows


def format_gap(gap: Gap) -> str:
    return (
        f"{gap.topic}-{gap.partition}: offsets {gap.start} to {gap.end - 1} ({gap.end - gap.start:,}) were deleted "
        f"before they could be archived: they are below the log start offset ({gap.reason})"
    )
