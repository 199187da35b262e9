"""The catalogues that hold archives, by the location that names an archive.

DIR, file:///DIR        a local directory, with its catalogue in the SQLite database DIR/catalog.db, or in the directory
s3://BUCKET/PREFIX      an object store, with its catalogue there; also gs: and abfss:
catalog:NAME/NAMESPACE  a namespace of a catalogue that .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__* configures
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.archive.archive import Archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import open_storage, store_properties
from kbroker.archive.storage.local import LocalStorage, make_directory
from kbroker.archive.storage.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TOPICS = "topics"
DATABASE = "catalog.db"
OLD_MANIFEST = "_manifest"  # of format 1
SQLITE, DIRECTORY = "sqlite", "directory"
_FILE_IO = {"py-io-impl": "kbroker.archive.catalogs.durable_io.DurableFileIO"}
# Seconds for which a commit waits for another process that writes to the database.
_LOCK_WAIT_S = 30


def open_archive(location: str) -> Archive:
    """Open an archive that exists. Raises ArchiveError."""
    return _archive(location, None).load()


def create_archive(
    location: str, settings: Mapping[str, Any], catalog: str = SQLITE, *, converts: bool = False
) -> Archive:
    """Open an archive, or create it with these settings (fields of ArchiveSettings). Raises ArchiveError.

    `catalog` is for a new archive in a local directory: sqlite, or directory. `converts`: to convert the archive of
    format 1 in the same place, which is refused otherwise.
    """
    return _archive(location, catalog, converts).load_or_create(settings)


def _archive(location: str, new: str | None, converts: bool = False) -> Archive:
    """Return an archive that is not loaded; `new`: the kind of catalogue of a new one, None if it must exist."""
    if location.startswith("catalog:"):
        name, _, namespace = location.removeprefix("catalog:").partition("/")
        if not name or not namespace:
            raise ArchiveError(f"{location}: the form is catalog:NAME/NAMESPACE")
        return Archive(_configured_catalog(name), namespace, location, None)
    storage = open_storage(location)
    if not converts and storage.list_directory(OLD_MANIFEST):
        raise ArchiveError(
            f"{storage.root}: is an archive of an earlier format; convert it once with: kbroker archive convert"
        )
    if not isinstance(storage, LocalStorage):
        return Archive(_directory_catalog(storage), TOPICS, storage.root, storage.uri(""))
    if storage.exists(DATABASE):
        kind = SQLITE
    elif storage.exists(f"{TOPICS}.json"):
        kind = DIRECTORY
    elif new is None:
        raise ArchiveError(f"{storage.root}: no archive found; create one with: kbroker archive run")
    else:
        kind = new
    catalog = _sqlite_catalog(storage) if kind == SQLITE else _directory_catalog(storage)
    return Archive(catalog, TOPICS, storage.root, storage.uri(""))


def _directory_catalog(storage: Storage) -> "Catalog":
    from kbroker.archive.catalogs.directory_catalog import DirectoryCatalog

    return DirectoryCatalog("kbroker", **store_properties(), **_FILE_IO, root=storage.root)


def _sqlite_catalog(storage: LocalStorage) -> "Catalog":
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import OperationalError

    try:
        make_directory(storage.root)
    except OSError as error:
        raise ArchiveError(f"{storage.root}: {(error.strerror or str(error)).lower()}") from None
    database = os.path.join(storage.root, DATABASE)
    url = URL.create("sqlite", database=database, query={"timeout": str(_LOCK_WAIT_S)})
    settings = {**_FILE_IO, "uri": url.render_as_string(), "warehouse": storage.uri("")}
    try:
        return SqlCatalog("kbroker", **settings)
    except OperationalError as error:
        # Another process has created the database's tables at the same time.
        if "already exists" not in str(error):
            raise ArchiveError(f"{database}: {error.orig}") from None
        return SqlCatalog("kbroker", **settings)


def _configured_catalog(name: str) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **_FILE_IO)
    except Exception as error:  # of the catalogue's client or database
        text = str(error).partition("\n")[0]
        raise ArchiveError(f"catalog:{name}: {text or type(error).__name__}") from error
