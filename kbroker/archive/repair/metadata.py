"""Restores a table whose current metadata file is gone or damaged: its content becomes that of the one before it.

What was committed meanwhile is not in the table any more, but its files are still there: repair finds them, or the next
`archive run` archives the same offsets again.
"""

import re

import pyarrow as pa
from pyiceberg.serializers import FromByteStream

from kbroker.archive.archive import Archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import open_storage
from kbroker.archive.storage.storage import Storage
from kbroker.archive.topic_state import decode_properties
from kbroker.archive.verification.table_files import error_text

_VERSION = re.compile(r"v?(\d+)(-.*)?\.metadata\.json")


def restore_metadata(archive: Archive, topic: str, dry_run: bool) -> str:
    """Replace the current metadata of a topic's table, and return the name of the file that it is now.

    Raises ArchiveError if the catalogue is a server, and if no older metadata can be read.
    """
    if archive.root is None:
        raise ArchiveError(f"{topic}: its metadata cannot be read; only the owner of the catalogue can restore it")
    directory = f"{archive.namespace}/{topic}/metadata"
    storage = open_storage(archive.root)
    current = _current_name(archive, topic, storage, directory)
    names = [entry.name for entry in storage.list_directory(directory) if not entry.is_directory]
    older = [name for name in names if name != current and 0 <= _version(name) <= _version(current)]
    for name in sorted(older, key=lambda name: (_version(name), name), reverse=True):
        try:
            data = storage.read(f"{directory}/{name}")
            metadata = FromByteStream.table_metadata(pa.BufferReader(data))
            decode_properties(metadata.properties, name)
        except Exception:  # damaged, too
            continue
        if not dry_run:
            storage.replace(f"{directory}/{current}", data)
        return name
    raise ArchiveError(f"{topic}: its metadata {current} cannot be read, and there is no older one that can")


def _current_name(archive: Archive, topic: str, storage: Storage, directory: str) -> str:
    """Return the name of the metadata file that the catalogue refers to."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import select

    catalog = archive.catalog
    if isinstance(catalog, SqlCatalog):
        query = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == archive.namespace,
            IcebergTables.table_name == topic,
        )
        try:
            with catalog.engine.connect() as connection:
                location = connection.execute(query).scalar_one()
        except Exception as error:  # of the database
            raise ArchiveError(f"{archive.location}: {error_text(error)}") from error
        return str(location).rpartition("/")[2]
    # A catalogue in a directory: the newest one counts.
    names = [entry.name for entry in storage.list_directory(directory) if _version(entry.name) >= 0]
    if not names:
        raise ArchiveError(f"{topic}: the table has no metadata")
    return max(names, key=_version)


def _version(name: str) -> int:
    match = _VERSION.fullmatch(name)
    return -1 if match is None else int(match[1])
