"""What local directories and object stores have in common, and the errors of object stores."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import open_storage, store_properties
from kbroker.archive.storage.storage import FileMissingError, Storage, walk


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "root") if request.param == "local" else "memory:///", {})


def test_file_operations(storage: Storage) -> None:
    """A file is created once; others are replaced and deleted."""
    assert storage.list_directory("") == []
    assert storage.create("a/b=c/d", b"first")
    assert not storage.create("a/b=c/d", b"second")
    storage.replace("a/f", b"1")
    storage.replace("a/f", b"22")
    assert (storage.read("a/b=c/d"), storage.read("a/f"), storage.size("a/f")) == (b"first", b"22", 2)
    assert [(entry.name, entry.is_directory) for entry in storage.list_directory("a")] == [("b=c", True), ("f", False)]
    assert [(entry.name, entry.size) for entry in walk(storage)] == [("a/b=c/d", 5), ("a/f", 2)]
    assert storage.list_directory("absent") == []
    assert (storage.exists("a/f"), storage.exists("a/g")) == (True, False)
    assert storage.uri("a/f").startswith(("file:///", "memory:"))
    with pytest.raises(ArchiveError, match=r"a/f: has 2 bytes, at most 1 are read"):
        storage.read("a/f", max_bytes=1)
    with pytest.raises(FileMissingError, match="a/g: no such"):
        storage.read("a/g")
    storage.delete("a/f")
    storage.delete("a/f")
    storage.delete("a", recursive=True)
    assert list(walk(storage)) == []


def test_a_repeated_request_of_an_object_store_is_no_conflict() -> None:
    """The response to the first one may have been lost."""
    storage = open_storage("memory:///", {})
    assert storage.create("a", b"1")
    assert storage.create("a", b"1")
    assert not storage.create("a", b"2")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An object store that accepts connections and never responds."""
    server = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                accepted.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for each in accepted:
        each.close()


def test_an_object_store_that_fails(silent_server: str) -> None:
    """One clear sentence without credentials, after a bounded time."""
    properties = {"s3.access-key-id": "me", "s3.secret-access-key": "secret", "s3.region": "r", "s3.max-retries": "1"}
    absent = open_storage("s3a://bucket/x", properties | {"s3.endpoint": "http://127.0.0.1:1"})
    with pytest.raises(ArchiveError, match=r"^s3://bucket/x/a: the object store cannot be reached$"):
        absent.read("a")
    silent = open_storage("s3://bucket", properties | {"s3.endpoint": silent_server, "s3.request-timeout": "0.2"})
    with pytest.raises(ArchiveError, match=r"^s3://bucket/a: the object store does not respond$"):
        silent.create("a", b"")


def test_properties_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of pyiceberg's catalogue `kbroker` win; its properties of other things do not apply."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("PYICEBERG_CATALOG__KBROKER__S3__ENDPOINT", "http://b")
    monkeypatch.setenv("PYICEBERG_CATALOG__KBROKER__URI", "http://c")
    properties = store_properties()
    assert (properties["s3.endpoint"], properties["s3.region"]) == ("http://b", "eu-west-1")
    assert "uri" not in properties
