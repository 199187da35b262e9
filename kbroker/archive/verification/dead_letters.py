"""The offsets of records that are in the dead-letter table instead of the topic's table."""

from collections import defaultdict

from kbroker.archive.archive import Archive
from kbroker.archive.decoding.dead_letters import find_dead_letters
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange, merge_ranges, ranges_of
from kbroker.archive.verification.table_files import error_text


class DeadLetters:
    """The dead letters of a topic. They are read at first need."""

    def __init__(self, archive: Archive, topic: str) -> None:
        self._archive = archive
        self._topic = topic
        self._offsets: dict[int, tuple[OffsetRange, ...]] | None = None

    def offsets(self, partition: int) -> tuple[OffsetRange, ...]:
        """Raises ArchiveError if the table cannot be read."""
        if self._offsets is None:
            try:
                self._offsets = self._read()
            except Exception as error:  # pyiceberg and its catalogues have no common exception
                raise ArchiveError(f"the dead letters cannot be read ({error_text(error)})") from error
        return self._offsets.get(partition, ())

    def _read(self) -> dict[int, tuple[OffsetRange, ...]]:
        table = find_dead_letters(self._archive, self._topic)
        if table is None:
            return {}
        result: dict[int, tuple[OffsetRange, ...]] = defaultdict(tuple)
        for batch in table.iceberg.scan(selected_fields=("partition", "offset")).to_arrow_batch_reader():
            offsets: dict[int, list[int]] = defaultdict(list)
            for partition, offset in zip(
                *(batch.column(name).to_pylist() for name in ("partition", "offset")), strict=True
            ):
                offsets[partition].append(offset)
            for partition, listed in offsets.items():
                result[partition] = merge_ranges([*result[partition], *ranges_of(listed)])
        return result
