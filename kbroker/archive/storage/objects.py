"""Storage below a prefix of an object store, through obstore."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage.storage import MAX_READ_BYTES, DirectoryEntry, FileMissingError, require_size


class ObjectStorage:
    """Storage below a prefix of an object store. A directory exists if there is an object in it."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        """Raises ArchiveError for a scheme that is not supported."""
        import obstore

        # s3a is Hadoop's name.
        self.root = re.sub(r"^s3[an]:", "s3:", location, flags=re.IGNORECASE).rstrip("/")
        self._obstore = obstore
        try:
            self._store: Any = obstore.store.from_url(
                self.root,
                **_store_options(self.root, properties),
            )
        except Exception as error:  # ValueError, obstore's errors
            raise ArchiveError(f"{location}: {_error_text(error)}") from None

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        with self._errors(path):
            listed = self._store.list_with_delimiter(path or None)
        directories = [DirectoryEntry(_name(prefix), 0, 0, True) for prefix in listed["common_prefixes"]]
        files = [
            DirectoryEntry(_name(each["path"]), each["size"], round(each["last_modified"].timestamp() * 1000), False)
            for each in listed["objects"]
        ]
        return sorted(directories + files)

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except FileMissingError:
            return False
        return True

    def read(self, path: str, max_bytes: int | None = MAX_READ_BYTES) -> bytes:
        with self._errors(path):
            result = self._store.get(path)
            require_size(result.meta["size"], max_bytes, self.uri(path))
            return bytes(result.bytes())

    def create(self, path: str, data: bytes) -> bool:
        with self._errors(path):
            try:
                self._store.put(path, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return self.read(path, None) == data
        return True

    def replace(self, path: str, data: bytes) -> None:
        with self._errors(path):
            self._store.put(path, data)

    def delete(self, path: str, recursive: bool = False) -> None:
        with self._errors(path), contextlib.suppress(FileNotFoundError):
            paths = [path]
            if recursive:
                paths += [each["path"] for part in self._store.list(path) for each in part]
            self._store.delete(paths)

    def size(self, path: str) -> int:
        with self._errors(path):
            return cast(int, self._store.head(path)["size"])

    @contextlib.contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        location = self.uri(path)
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise ArchiveError(f"{location}: {_error_text(error)}") from None
            raise FileMissingError(f"{location}: no such object") from None
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise ArchiveError(f"{location}: {_error_text(error)}") from None


def _store_options(location: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of obstore for pyiceberg's properties."""
    scheme = location.partition(":")[0].lower()
    if scheme == "memory":
        return {}
    names = _PROPERTIES.get(scheme)
    if names is None:
        raise ValueError(f"archives are in local directories, or at {', '.join(_PROPERTIES)}: URIs")
    config = {name: properties[key] for key, name in names.items() if key in properties}
    client: dict[str, Any] = {
        "connect_timeout": f"{properties.get('s3.connect-timeout', 5)}s",
        "timeout": f"{properties.get('s3.request-timeout', 30)}s",
        "allow_http": config.get("endpoint", "").startswith("http:"),
    }
    retries = {"max_retries": int(properties.get("s3.max-retries", 5)), "retry_timeout": timedelta(seconds=60)}
    return {"config": config, "client_options": client, "retry_config": retries}


_AZURE = {
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_key",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
}
# By scheme: pyiceberg's name of a property, and that of obstore.
_PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "s3.endpoint": "endpoint",
        "s3.region": "region",
        "s3.access-key-id": "access_key_id",
        "s3.secret-access-key": "secret_access_key",
        "s3.session-token": "session_token",
        "s3.anonymous": "skip_signature",
        "s3.force-virtual-addressing": "virtual_hosted_style_request",
    },
    "gs": {},
    "abfs": _AZURE,
    "abfss": _AZURE,
}


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _error_text(error: Exception) -> str:
    """Return one line of obstore's errors, which contain responses in XML and the source's debug output."""
    text = str(error)
    parts = [match[1] for name in ("Code", "Message") if (match := re.search(f"<{name}>([^<]*)</{name}>", text))]
    if parts:
        return ": ".join(parts)
    if kind := re.search(r"kind: (Connect|Timeout)\b", text):
        return "the object store cannot be reached" if kind[1] == "Connect" else "the object store does not respond"
    return text.partition("\n")[0] or type(error).__name__
