"""What is in the page cache is read or sent by sendfile; the rest is not, since that would wait for the disk."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.runtime.real_disk import RealDisk, RealFile

PAGE = os.sysconf("SC_PAGE_SIZE")
CONTENT = os.urandom(100 * PAGE + 100)


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    file.append(CONTENT)
    file.fdatasync()
    return file


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def receive(theirs: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += theirs.recv(size - len(data))
    return data


def test_bytes_of_the_page_cache_are_sent(file: RealFile, sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    for position, size in ((0, 10), (5, PAGE), (PAGE - 1, 2), (3 * PAGE + 7, 9 * PAGE), (100 * PAGE, 100)):
        assert file.send_nowait(ours, size, position) == size
        assert receive(theirs, size) == CONTENT[position : position + size]


def test_only_what_the_socket_has_room_for_is_sent(
    file: RealFile, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    sent = 0
    while size := file.send_nowait(ours, len(CONTENT) - sent % 1000, sent % 1000):
        assert receive(theirs, 1)
        sent += size
    assert size == 0


def test_appended_bytes_are_sent(file: RealFile, sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    assert file.send_nowait(ours, 10, 0) == 10
    # More than is mapped.
    end = len(CONTENT)
    while end < 17 << 20:
        end += file.append(bytes(1 << 20))
    file.append(b"appended")
    assert file.send_nowait(ours, 8, end) == 8
    assert receive(theirs, 18)[10:] == b"appended"


def test_bytes_beyond_the_end_must_be_read(file: RealFile, sockets: tuple[socket.socket, socket.socket]) -> None:
    assert file.send_nowait(sockets[0], 100, len(CONTENT) + 100 * PAGE) is None


def test_bytes_that_are_not_in_the_page_cache_must_be_read(
    file: RealFile, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    # Without readahead.
    file.pread_nowait(1, 0)
    file.drop_clean_pages(0)
    if file.send_nowait(ours, 10, 50 * PAGE) is not None:
        pytest.skip("the file system keeps its pages in memory")
    file.pread(4 * PAGE, 50 * PAGE)
    sent = file.send_nowait(ours, 40 * PAGE, 50 * PAGE + 10)
    assert sent is not None
    assert 4 * PAGE - 10 <= sent < 40 * PAGE
    assert sent % PAGE == PAGE - 10, "up to the first missing page"
    assert receive(theirs, sent) == CONTENT[50 * PAGE + 10 : 50 * PAGE + 10 + sent]


def test_a_closed_socket_is_left_to_the_transport(file: RealFile, sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    theirs.close()
    assert file.send_nowait(ours, 10, 0) is None
    assert file.send_nowait(ours, 10, 0) is None


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_without_support_for_sendfile_it_is_not_tried_again(
    file: RealFile, sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    calls = []

    def fail(*arguments: int) -> int:
        calls.append(arguments)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", fail)
    assert file.send_nowait(sockets[0], 10, 0) is None
    assert file.send_nowait(sockets[0], 10, 0) is None
    assert len(calls) == 1


def test_without_rwf_nowait_only_bytes_of_the_page_cache_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.runtime.real_disk.RWF_NOWAIT", 0)
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    file.append(CONTENT)
    assert file.pread_nowait(9 * PAGE, 3 * PAGE + 7) == CONTENT[3 * PAGE + 7 : 12 * PAGE + 7]
    assert file.pread_nowait(200, 100 * PAGE) == CONTENT[100 * PAGE :]
    assert file.pread_nowait(1, len(CONTENT) + PAGE) is None
    file.fdatasync()
    file.drop_clean_pages(0)
    if file.pread_nowait(1, 50 * PAGE) is not None:
        pytest.skip("the file system keeps its pages in memory")
    file.pread(4 * PAGE, 50 * PAGE)
    assert file.pread_nowait(40 * PAGE, 50 * PAGE + 10) == CONTENT[50 * PAGE + 10 : 54 * PAGE]


def test_a_read_error_is_raised_without_rwf_nowait_too(file: RealFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EINVAL, "broken")

    monkeypatch.setattr("kbroker.runtime.real_disk.RWF_NOWAIT", 0)
    file._file_system.nowait = False
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="broken"):
        file.pread_nowait(1, 0)


def test_too_many_mappings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.runtime.real_disk.RWF_NOWAIT", 0)
    monkeypatch.setattr("kbroker.runtime.page_cache._MAX_MAPPINGS", 2)
    disk = RealDisk()
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(3)]
    for file in files:
        file.append(b"x")
    assert [file.pread_nowait(1, 0) for file in files] == [b"x", b"x", None]
    files[0].close()
    assert files[2].pread_nowait(1, 0) == b"x"


def test_a_mapping_is_removed_with_its_file(tmp_path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = sockets
    path = f"{tmp_path}/mapped-file"
    file = RealDisk().open(path, create=True)
    file.append(CONTENT)
    assert file.send_nowait(ours, 10, 0) == 10
    assert path in Path("/proc/self/maps").read_text()
    file.close()
    assert path not in Path("/proc/self/maps").read_text()
