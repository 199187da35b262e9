"""Dead letters: records that the table of their topic cannot hold, or not decoded, with the reason.

They are in a namespace of their own, in a table for each topic that has any. It has the columns of the topic's table
without decoded ones, and `reason` and `archived`. A record is in it at most once: its state covers the offsets up to
the last dead letter of each partition, below which a writer adds nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from kbroker.archive.archive import Archive, ArchiveTable, as_archive_errors
from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.rows import SCHEMA
from kbroker.archive.topic_state import TopicState

NAMESPACE = "dead_letters"
REASON, ARCHIVED = "reason", "archived"
DEAD_LETTER_SCHEMA = Schema(
    *SCHEMA.fields,
    NestedField(11, REASON, StringType(), required=True),
    NestedField(12, ARCHIVED, TimestamptzType(), required=True),
)


def make_dead_rows(rows: pa.RecordBatch, reasons: Sequence[str], now_ms: int) -> pa.RecordBatch:
    """Return rows of a topic's table as rows of its dead letters."""
    archived = pa.array([now_ms * 1000] * rows.num_rows, pa.timestamp("us", "UTC"))
    return rows.append_column(REASON, pa.array(reasons, pa.string())).append_column(ARCHIVED, archived)


def dead_letter_archive(archive: Archive) -> Archive:
    """Return the archive of an archive's dead letters."""
    namespace = NAMESPACE if archive.root is not None else f"{archive.namespace}_{NAMESPACE}"
    result = Archive(archive.catalog, namespace, archive.location, archive.root)
    result.settings = archive.settings
    return result


def dead_letter_topics(archive: Archive) -> list[str]:
    """Return the topics that have a table of dead letters."""
    with as_archive_errors(archive.location):
        try:
            tables = archive.catalog.list_tables(dead_letter_archive(archive).namespace)
        except NoSuchNamespaceError:
            return []
        return sorted(identifier[-1] for identifier in tables)


def find_dead_letters(archive: Archive, topic: str) -> ArchiveTable | None:
    """Return the table of a topic's dead letters if it has ever had any."""
    dead = dead_letter_archive(archive)
    return dead.table(topic) if archive.catalog.table_exists((dead.namespace, topic)) else None


def tables_with_dead_letters(archive: Archive, topics: Sequence[str] = ()) -> list[ArchiveTable]:
    """Return the tables of these topics (by default of all), and those of their dead letters."""
    tables = archive.tables(topics)
    dead = [find_dead_letters(archive, table.topic) for table in tables]
    return [*tables, *(table for table in dead if table is not None)]


def create_dead_letters(archive: Archive, topic: str) -> ArchiveTable:
    """Return the table of a topic's dead letters; create it if necessary."""
    dead = dead_letter_archive(archive)
    with suppress(NamespaceAlreadyExistsError):
        archive.catalog.create_namespace(dead.namespace)
    return dead.create_table(topic, DEAD_LETTER_SCHEMA)


def only_new(dead: pa.RecordBatch, resume: Mapping[int, int]) -> pa.RecordBatch:
    """Return the dead letters that are not in their table yet. `resume`: its resume offsets by partition."""
    for partition, offset in resume.items():
        is_old = pc.and_(pc.equal(dead.column("partition"), partition), pc.less(dead.column("offset"), offset))
        dead = dead.filter(pc.invert(is_old))
    return dead


def with_dead_letters(state: TopicState, files: Sequence[DataFile]) -> TopicState:
    """Return the state of a table of dead letters after a commit that adds these files."""
    ends: dict[int, int] = {}
    for file in files:
        ends[file.partition] = max(ends.get(file.partition, 0), file.last + 1)
    resume = state.resume_offsets()
    return state.with_covered(
        (partition, OffsetRange(resume.get(partition, 0), end)) for partition, end in sorted(ends.items())
    )
