"""Commits a complete list of a table's files. The manifests of the snapshot before may be damaged, and are not read."""

import time
from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.table.update.snapshot import _FastAppendFiles

from kbroker.archive.archive import COMMIT, KIND, ArchiveTable, ConflictError
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.topic_state import TopicState, encode_properties
from kbroker.archive.verification.table_files import error_text


class _ReplaceAll(_FastAppendFiles):
    """A snapshot with the added files only."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return []


def replace_files(
    table: ArchiveTable, state: TopicState, files: Sequence[DataFile], damaged_snapshots: Sequence[int]
) -> None:
    """Make `files` the files of the table, in one commit, and remove snapshots that cannot be read.

    Raises ConflictError if another process has committed since the table was read, else ArchiveError.
    """
    new = replace(state, commit=table.state.commit + 1, time_ms=time.time_ns() // 1_000_000)
    try:
        with table.iceberg.transaction() as transaction:
            transaction.set_properties(encode_properties(new, table.state))
            properties = {COMMIT: str(new.commit), KIND: "repair"}
            with _ReplaceAll(Operation.OVERWRITE, transaction, table.iceberg.io, None, properties) as producer:
                for file in files:
                    producer.append_data_file(file.entry)
            if damaged_snapshots:
                update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(damaged_snapshots)})
                transaction._apply((update,))
    except (CommitFailedException, ValidationException) as error:
        raise ConflictError(f"{table.location}: another process has changed the table: {error}") from None
    except Exception as error:  # pyiceberg, its catalogues and file systems have no common exception
        raise ArchiveError(f"{table.location}: the repair cannot be committed: {error_text(error)}") from error
    table.refresh()
