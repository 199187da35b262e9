"""Files beside the tables, and the metadata of directory catalogues: local directories and object stores."""

import os
import re
from collections.abc import Mapping

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage.local import LocalStorage
from kbroker.archive.storage.objects import ObjectStorage
from kbroker.archive.storage.storage import Storage

# As in Hadoop: a colon without a slash after it belongs to a file name.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def open_storage(location: str, properties: Mapping[str, str] | None = None) -> Storage:
    """Return the storage at a local path or URI (file, s3, gs, abfss, memory) without reading or creating anything.

    `properties` are those of pyiceberg, such as s3.endpoint, by default those that the environment configures. Raises
    ArchiveError.
    """
    if not location:
        raise ArchiveError("the directory name is empty")
    if is_local(location):
        return LocalStorage(local_path(location))
    return ObjectStorage(location, store_properties() if properties is None else properties)


def is_local(location: str) -> bool:
    """Return whether a location is a local path or a file: URI."""
    scheme = _SCHEME.match(location)
    return scheme is None or scheme[1].lower() == "file"


def local_path(location: str) -> str:
    """Return the path of a local location. Percent-encoding is not decoded, as in Hadoop. Raises ArchiveError."""
    if not _SCHEME.match(location):
        return location
    path = location.partition(":")[2]
    if not path.startswith("//"):
        return path
    host, slash, path = path[2:].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ArchiveError(f"{location}: is a file: URI of another host; write file:///PATH")
    return "/" + path


def store_properties() -> dict[str, str]:
    """Return pyiceberg's properties of its catalogue `kbroker`, and the end point and region of S3 in AWS_*.

    They are in .pyiceberg.yaml or PYICEBERG_CATALOG__KBROKER__S3__ENDPOINT and so on. Credentials that are not there
    are left to the clients of the object stores: AWS_ACCESS_KEY_ID, the role of the machine.
    """
    from pyiceberg.utils.config import Config

    configured = {
        name: str(value)
        for name, value in (Config().get_catalog_config("kbroker") or {}).items()
        if name.startswith(("s3.", "gcs.", "adls.", "client."))
    }
    environment = {
        "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
        "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "s3.connect-timeout": "5",
        "s3.request-timeout": "30",
    }
    return {name: text for name, text in environment.items() if text} | configured
