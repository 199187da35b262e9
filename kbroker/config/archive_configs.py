"""Topic configs of the history in an archive, and where archives may be."""

import posixpath
from collections.abc import Sequence
from importlib.util import find_spec

from kbroker.common import install_command
from kbroker.config.values import ConfigError

ARCHIVE_TABLE = "kbroker.archive.table"
ARCHIVE_EARLIEST = "kbroker.archive.earliest"
ARCHIVE_BEFORE_DELETE = "kbroker.archive.before.delete"
ARCHIVE_LOCATIONS = "kbroker.archive.locations"

# What archives need besides a broker: the extra `archive`.
_PACKAGES = ("pyarrow", "pyiceberg")


def check_archive_table(value: str, allowed: Sequence[str], *, has_authorizer: bool) -> None:
    """Raise ConfigError if a topic's history may not be read from here. `value`: LOCATION or LOCATION#TOPIC.

    `allowed`: the locations and parents of locations that the broker's config names. Without any, and without an
    authorizer, any directory is allowed: whoever may alter topics may then read its archives.
    """
    head, separator, topic = value.rpartition("#")
    location = head if separator else topic
    if not location or (separator and not topic):
        raise ConfigError(f"{ARCHIVE_TABLE}: '{value}' must be LOCATION or LOCATION#TOPIC, as of kbroker archive run")
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{ARCHIVE_TABLE} needs {' and '.join(missing)} on the brokers: {install_command('archive')}")
    location = _normal(location)
    if allowed:
        if not any(_is_within(location, _normal(prefix)) for prefix in allowed):
            raise ConfigError(f"{ARCHIVE_TABLE}: '{location}' is not below one of {ARCHIVE_LOCATIONS}")
    elif has_authorizer or not location.startswith("/"):
        raise ConfigError(
            f"{ARCHIVE_TABLE}: {ARCHIVE_LOCATIONS} of the brokers must name the location '{location}' or a parent of it"
        )


def _normal(location: str) -> str:
    """Return a location without its .. and final slashes: those of directories are absolute paths."""
    path = location.removeprefix("file://")
    return posixpath.normpath(path) if path.startswith("/") else location.rstrip("/")


def _is_within(location: str, parent: str) -> bool:
    return "/../" not in f"{location}/" and (location == parent or location.startswith(parent.rstrip("/") + "/"))
