"""The embedded coordination service against a real ZooKeeper: the same calls have the same results.

Random calls of two sessions go to both. The results, the errors and the events of watches are compared.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyspark
import pytest
from kazoo import exceptions
from kazoo.client import KazooClient

from kbroker.metadata.store.coordination import (
    ANY_VERSION,
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Set,
    WatchEvent,
)
from kbroker.metadata.store.embedded import EmbeddedSession, EmbeddedStore
from kbroker.pipeline.spark.java import require_java
from tests.compat.support import eventually, free_port
from tests.unit.support.memory_disk import make_environment, settle

ROOT = "/test"
PATHS = [f"{ROOT}/{name}" for name in ("a", "b", "a/x", "a/y", "b/x", "a/x/deep")]
CALLS = 400
SESSIONS = 2
START_S = 60.0

ERRORS: dict[type[Exception], type[CoordinationError]] = {
    exceptions.NodeExistsError: NodeExists,
    exceptions.NoNodeError: NoNode,
    exceptions.BadVersionError: BadVersion,
    exceptions.NotEmptyError: NotEmpty,
    # The interface has no error of its own for the child of an ephemeral node.
    exceptions.NoChildrenForEphemeralsError: NoNode,
}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a ZooKeeper server, which is among the jars of PySpark. It does not sync its files."""
    directory, port = tmp_path_factory.mktemp("zookeeper"), free_port()
    config = directory / "zoo.cfg"
    config.write_text(
        f"dataDir={directory}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\ntickTime=2000\n"
    )
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    with (directory / "output").open("w") as output:
        server = subprocess.Popen(
            [
                require_java(os.environ).executable,
                "-Xmx128m",
                "-cp",
                str(jars),
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(config),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        # kazoo waits longer and longer between its attempts to connect.
        eventually(partial(_is_listening, port), "a ZooKeeper server")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class ZooKeeperSession:
    def __init__(self, address: str) -> None:
        self.client = KazooClient(address)
        self.client.start(START_S)
        self.events: list[WatchEvent] = []
        self._last_event: Any = None

    def watch(self, event: Any) -> None:
        # kazoo passes the deletion of a node twice to a function that watches its data and its children.
        if event is self._last_event:
            return
        self._last_event = event
        kind = "children" if event.type == "CHILD" else event.type.lower()
        self.events.append(WatchEvent(kind, event.path))

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self, name)(*arguments)
        except exceptions.KazooException as error:
            return ERRORS[type(error)]

    def get(self, path: str, watched: bool) -> Any:
        data, stat = self.client.get(path, self.watch if watched else None)
        return data, stat.version

    def exists(self, path: str, watched: bool) -> Any:
        stat = self.client.exists(path, self.watch if watched else None)
        return None if stat is None else stat.version

    def children(self, path: str, watched: bool) -> Any:
        return sorted(self.client.get_children(path, self.watch if watched else None))

    def create(self, path: str, data: bytes, ephemeral: bool) -> None:
        self.client.create(path, data, ephemeral=ephemeral)

    def set(self, path: str, data: bytes, version: int) -> Any:
        return self.client.set(path, data, version).version

    def delete(self, path: str, version: int) -> None:
        self.client.delete(path, version)

    def multi(self, ops: list[Op]) -> None:
        transaction = self.client.transaction()
        for op in ops:
            match op:
                case Check():
                    transaction.check(op.path, op.version)
                case Create():
                    transaction.create(op.path, op.data, ephemeral=op.ephemeral)
                case Set():
                    transaction.set_data(op.path, op.data, op.version)
                case Delete():
                    transaction.delete(op.path, op.version)
        results = transaction.commit()
        # The operations around the one that fails have errors of their own.
        for result in results:
            if type(result) in ERRORS:
                raise result

    def close(self) -> None:
        self.client.stop()
        self.client.close()


class EmbeddedCalls:
    def __init__(self, runner: asyncio.Runner, session: EmbeddedSession) -> None:
        self._runner = runner
        self._session = session
        self.events: list[WatchEvent] = []

    def call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self._session, name)
        if name in ("get", "exists", "children"):
            path, watched = arguments
            arguments = (path, self.events.append if watched else None)

        async def run() -> Any:
            if name == "create":
                path, data, ephemeral = arguments
                return await method(path, data, ephemeral=ephemeral)
            return await method(*arguments)

        try:
            return self._runner.run(run())
        except CoordinationError as error:
            return type(error)

    def close(self) -> None:
        self._runner.run(self._session.close())


def random_op(random: Random) -> Op:
    path, data = random.choice(PATHS), random.randbytes(3)
    version = random.choice([ANY_VERSION, ANY_VERSION, 0, 1])
    ops: list[Op] = [Create(path, data), Create(path, data, True), Set(path, data, version), Delete(path, version)]
    return random.choice([*ops, Check(path, max(version, 0))])


def random_call(random: Random) -> tuple[str, tuple[Any, ...]]:
    path = random.choice(PATHS)
    match random.choice(["get", "exists", "children", "create", "create", "set", "delete", "multi"]):
        case "multi":
            return "multi", ([random_op(random) for _ in range(random.randint(1, 4))],)
        case "create":
            return "create", (path, random.randbytes(3), random.random() < 0.3)
        case "set":
            return "set", (path, random.randbytes(3), random.choice([ANY_VERSION, 0, 1]))
        case "delete":
            return "delete", (path, random.choice([ANY_VERSION, ANY_VERSION, 0, 1]))
        case name:
            return name, (path, random.random() < 0.7)


@pytest.mark.parametrize("seed", range(3))
def test_the_embedded_service_behaves_like_zookeeper(zookeeper: str, seed: int) -> None:
    random = Random(seed)
    with asyncio.Runner() as runner, ExitStack() as stack:

        async def open_store() -> EmbeddedStore:
            return await EmbeddedStore.open(make_environment(), "/data")

        store = runner.run(open_store())
        embedded = [EmbeddedCalls(runner, store.session()) for _ in range(SESSIONS)]
        sessions = [stack.enter_context(closing(ZooKeeperSession(zookeeper))) for _ in range(SESSIONS)]
        sessions[0].client.delete(ROOT, recursive=True)
        for client in (sessions[0], embedded[0]):
            assert client.call("create", ROOT, b"", False) is None
        for number in range(CALLS):
            index, (name, arguments) = random.randrange(SESSIONS), random_call(random)
            expected = sessions[index].call(name, *arguments)
            assert embedded[index].call(name, *arguments) == expected, (number, name, arguments)
        # The ephemeral nodes of a session are deleted with it.
        sessions[1].close()
        embedded[1].close()
        for path in PATHS:
            assert embedded[0].call("exists", path, False) == sessions[0].call("exists", path, False)
        runner.run(settle())
        assert {event.kind for event in embedded[0].events} == {"created", "changed", "deleted", "children"}
        for ours, theirs in zip(embedded, sessions, strict=True):
            eventually(partial(_have_same_events, ours, theirs), "the same events of watches")


def _have_same_events(ours: EmbeddedCalls, theirs: ZooKeeperSession) -> bool:
    return ours.events == theirs.events
