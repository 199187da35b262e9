"""Services: programs beside the broker, connected by a pair of sockets."""

import asyncio
import sys
from pathlib import Path

import pytest

from kbroker.runtime.process_runner import ChildService
from kbroker.runtime.system import new_event_loop

ECHO = """
import os
print("started with", len(os.environ["PYTHONPATH"]) > 0, file=__import__("sys").stderr)
while data := os.read(0, 65536):
    os.write(1, data.upper())
"""
TIMEOUT_S = 30.0


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that sends back what it gets."""
    (tmp_path / "echoes.py").write_text(ECHO)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "echoes"


def run(test: "Test") -> None:
    loop = new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(test.run(loop), TIMEOUT_S))
    finally:
        loop.close()


class Test:
    """A service, what it has sent, and why it has ended."""

    __test__ = False

    def __init__(self, module: str, size: int, *, kills: bool = False) -> None:
        self.module = module
        self.size = size
        self.kills = kills
        self.received = b""
        self.reason = ""

    async def run(self, loop: asyncio.AbstractEventLoop) -> None:
        complete, ended = loop.create_future(), loop.create_future()

        def receive(data: bytes) -> None:
            self.received += data
            if len(self.received) == self.size:
                complete.set_result(None)

        service = ChildService(loop, self.module, receive, ended.set_result)
        # Before it is connected, and much at a time.
        service.send(b"a" * self.size)
        if self.size:
            await complete
        if self.kills:
            service.kill()
        self.reason = await ended


def test_bytes_in_both_directions(echo: str) -> None:
    test = Test(echo, 3_000_000, kills=True)
    run(test)
    assert test.received == b"A" * 3_000_000
    assert test.reason == "status -9"


def test_a_program_that_ends() -> None:
    test = Test("kbroker.there_is_no_such_module", 0)
    run(test)
    assert test.reason == "status 1"
