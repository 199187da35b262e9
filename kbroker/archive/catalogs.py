"""The catalogues that hold archives, by the location that names an archive.

DIR, file:///DIR      a local directory, with its catalogue in the SQLite database DIR/catalog.db
catalog:NAME/NS       namespace NS of a catalogue that .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__* configures
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbroker.archive.archive import Archive
from kbroker.archive.errors import ArchiveError

TOPICS = "topics"
DATABASE = "catalog.db"


def open_archive(location: str) -> Archive:
    """Open an archive that exists. Raises ArchiveError."""
    return _archive(location, create=False).load()


def create_archive(location: str, settings: Mapping[str, Any]) -> Archive:
    """Open an archive, or create it with these settings (fields of ArchiveSettings). Raises ArchiveError."""
    return _archive(location, create=True).load_or_create(settings)


def _archive(location: str, create: bool) -> Archive:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    if location.startswith("catalog:"):
        name, _, namespace = location.removeprefix("catalog:").partition("/")
        if not name or not namespace:
            raise ArchiveError(f"{location}: the form is catalog:NAME/NAMESPACE")
        return Archive(load_catalog(name), namespace, location, None)
    directory = Path(location.removeprefix("file://")).absolute()
    database = directory / DATABASE
    if create:
        directory.mkdir(parents=True, exist_ok=True)
    elif not database.exists():
        raise ArchiveError(f"{directory}: no archive found; create one with: kbroker archive run")
    root = directory.as_uri()
    catalog = SqlCatalog("kbroker", uri=f"sqlite:///{database}", warehouse=root)
    return Archive(catalog, TOPICS, str(directory), root)
