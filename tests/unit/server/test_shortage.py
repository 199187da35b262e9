"""Connections and requests while the process is short of file descriptors."""

import asyncio
import errno
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.api import dispatch
from kbroker.api.dispatch import Dispatch
from kbroker.config import BrokerConfig
from kbroker.runtime.environment import DescriptorLimits
from kbroker.runtime.real_disk import RealDisk
from kbroker.server.connection import Connection
from kbroker.server.socket_server import FEW_CONNECTIONS, Listener, SocketServer
from protocol.apis import ApiKey
from tests.unit.support.memory_disk import make_environment
from tests.unit.support.server_connection import ECHO, ConnectionUnderTest, DispatchTo

SHORTAGE = "out of file descriptors, disk space or memory"


def no_descriptor(*_: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "k01_fetch.py")


def no_library(*_: object) -> Any:
    raise ImportError("codec.so: cannot open shared object file: Too many open files")


def no_module(*_: object) -> Any:
    raise ModuleNotFoundError("No module named 'kbroker.api.k99_lost'")


@pytest.mark.parametrize(
    ("find", "reason"), [(no_descriptor, SHORTAGE), (no_library, SHORTAGE), (no_module, "internal error")]
)
@pytest.mark.parametrize("part", [1.0, 0.9])
def test_a_connection_is_closed_with_a_reason_if_the_handler_cannot_be_loaded(
    find: Any, reason: str, part: float
) -> None:
    """The header of a frame is read before the frame is complete."""
    tested = ConnectionUnderTest()
    tested.server.dispatch = DispatchTo(find)
    frame = tested.frame(ECHO, b"x" * 100)
    tested.receive(frame[: int(part * len(frame))])
    assert tested.transport.closed
    assert tested.server.errors.closed == Counter({reason: 1})


def test_a_handler_that_could_not_be_loaded_is_loaded_by_a_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Dispatch()
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "import_module", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            table[ApiKey.FETCH, 12]
    assert table[ApiKey.FETCH, 12].stats.api_key == ApiKey.FETCH


class Transport:
    """A transport whose socket has this file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        if name == "socket":
            return SimpleNamespace(fileno=lambda: self._descriptor)
        return "10.0.0.7", 5000

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


def test_connections_leave_file_descriptors_to_the_logs() -> None:
    async def scenario() -> None:
        environment = make_environment()
        environment.descriptors = DescriptorLimits.of(300)
        config = BrokerConfig.load({})
        server = SocketServer(environment, config, Dispatch())
        listener = Listener(server, "PLAINTEXT", config)

        def connect(descriptor: int) -> Transport:
            transport = Transport(descriptor)
            Connection(server.context, listener).connection_made(cast(asyncio.Transport, transport))
            return transport

        below = environment.descriptors.connections
        assert not any(connect(below + number).closed for number in range(FEW_CONNECTIONS)), (
            "a few connections may use reserved descriptors"
        )
        assert not connect(below - 1).closed
        assert connect(below).closed
        assert server.context.errors.closed == Counter({"out of file descriptors": 1})
        await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("limit", [32, 64, 150, 300, 1024, 65_536, 1 << 30])
def test_descriptor_limits(limit: int) -> None:
    shared = DescriptorLimits.of(limit)
    assert 0 < shared.connections < shared.files < shared.limit == limit
    assert shared.limit - shared.files >= 8, "for what is opened for a moment"


def test_a_disk_does_not_keep_files_open_with_a_reserved_descriptor(tmp_path: Path) -> None:
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    disk = RealDisk(descriptors[-1] + 1)
    try:
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                disk.open(f"{tmp_path}/f", create=True)
        disk.write_atomic(f"{tmp_path}/f", b"what is opened for a moment")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert disk.open(f"{tmp_path}/f").size() > 0
