"""The embedded coordination service: ZooKeeper's semantics, and what survives a crash."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kbroker.metadata.store.coordination import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    Set,
    Unavailable,
    WatchEvent,
)
from kbroker.metadata.store.embedded import EmbeddedStore
from kbroker.metadata.store.journal import JournalCorrupted, unframe
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle

DIR = "/data"


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await story()

    return asyncio.run(main())


async def opened(disk: MemoryDisk) -> EmbeddedStore:
    return await EmbeddedStore.open(make_environment(disk), DIR)


def test_versions_compare_and_set():
    async def story():
        session = (await opened(MemoryDisk())).session()
        await session.create("/a", b"one")
        assert await session.get("/a") == (b"one", 0)
        assert await session.set("/a", b"two", 0) == 1
        with pytest.raises(BadVersion):
            await session.set("/a", b"three", 0)
        assert await session.get("/a") == (b"two", 1)
        assert await session.set("/a", b"three") == 2
        with pytest.raises(BadVersion):
            await session.delete("/a", 1)
        await session.delete("/a", 2)
        assert await session.exists("/a") is None

    run(story)


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (Create("/a", b""), NodeExists),
        (Create("/missing/b", b""), NoNode),
        (Set("/missing", b""), NoNode),
        (Delete("/missing"), NoNode),
        (Delete("/a"), NotEmpty),
        (Check("/a", 7), BadVersion),
        (Check("/missing", 0), NoNode),
        (Create("/ephemeral/b", b""), NoNode),
    ],
)
def test_a_multi_makes_all_changes_or_none(op: Any, error: type[CoordinationError]):
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/a", b"")
        await session.create("/a/child", b"")
        await session.create("/ephemeral", b"", ephemeral=True)
        before = disk.read(f"{DIR}/coordination.journal")
        with pytest.raises(error):
            await session.multi(
                [Create("/new", b""), Set("/a", b"changed"), Delete("/a/child"), Create("/a/x", b""), op]
            )
        assert await session.exists("/new") is None
        assert await session.get("/a") == (b"", 0)
        assert await session.children("/a") == ["child"]
        assert disk.read(f"{DIR}/coordination.journal") == before

    run(story)


def test_get_many_gives_none_for_what_is_not_there():
    async def story():
        session = (await opened(MemoryDisk())).session()
        await session.create("/a", b"1")
        assert await session.get_many(["/a", "/b"]) == [(b"1", 0), None]

    run(story)


def test_ephemeral_nodes_go_with_their_session_and_are_never_on_disk():
    async def story():
        disk = MemoryDisk()
        store = await opened(disk)
        one, two = store.session(), store.session()
        await one.create("/brokers", b"")
        await one.multi([Create("/brokers/1", b"one", ephemeral=True), Set("/brokers/1", b"uno")])
        await two.create("/brokers/2", b"two", ephemeral=True)
        assert await two.children("/brokers") == ["1", "2"]
        await one.close()
        assert await two.children("/brokers") == ["2"]
        with pytest.raises(SessionExpired):
            await one.get("/brokers")
        assert await (await opened(disk)).session().children("/brokers") == []

    run(story)


def test_an_expired_session_hears_of_it():
    async def story():
        session = (await opened(MemoryDisk())).session()
        heard = []
        session.on_expired(lambda: heard.append(True))
        await session.create("/me", b"", ephemeral=True)
        await session.expire()
        assert heard == [True]
        with pytest.raises(SessionExpired):
            await session.exists("/me")

    run(story)


def test_watches_fire_once_after_the_change_is_durable():
    async def story():
        disk = MemoryDisk()
        store = await opened(disk)
        writer, reader = store.session(), store.session()
        heard: list[tuple[WatchEvent, int]] = []

        def watch(event: WatchEvent) -> None:
            heard.append((event, disk.syncs))

        assert await reader.exists("/a", watch) is None
        await writer.create("/a", b"")
        await settle()
        assert heard == [(("created", "/a"), 1)]
        await reader.get("/a", watch)
        await reader.get("/a", watch)
        await reader.children("/a", watch)
        await writer.set("/a", b"x")
        await writer.set("/a", b"y")
        await writer.create("/a/b", b"")
        await writer.delete("/a/b")
        await settle()
        assert [event for event, _ in heard[1:]] == [("changed", "/a"), ("children", "/a")]
        with pytest.raises(NoNode):
            await reader.get("/none", watch)
        await writer.create("/none", b"")
        await reader.children("/a", watch)
        await writer.delete("/a")
        await settle()
        assert [event for event, _ in heard[3:]] == [("deleted", "/a")]

    run(story)


def test_operations_that_wait_together_share_one_sync():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/n", b"")
        start = disk.syncs
        await asyncio.gather(*(session.create(f"/n/{i}", b"") for i in range(100)))
        assert disk.syncs - start <= 2
        assert len(await session.children("/n")) == 100

    run(story)


def test_everything_acknowledged_survives_power_loss_and_nothing_torn_does():
    async def story():
        for torn in range(60):
            disk = MemoryDisk()
            session = (await opened(disk)).session()
            await session.create("/a", b"kept")
            await session.set("/a", b"kept too")
            await session.create("/b", b"gone")
            await session.delete("/b")
            synced = len(disk.files[f"{DIR}/coordination.journal"].synced)
            disk.sync_fails = True
            with pytest.raises(Unavailable):
                await session.create("/c", b"never acknowledged")
            disk.power_loss(torn)
            disk.sync_fails = False
            whole = unframe(bytes(disk.files[f"{DIR}/coordination.journal"].data), synced)
            again = (await opened(disk)).session()
            assert await again.get("/a") == (b"kept too", 1)
            assert await again.exists("/b") is None
            assert (await again.exists("/c") is None) == (whole is None)
            await again.create("/d", b"after")
            assert await (await opened(disk)).session().get("/d") == (b"after", 0)

    run(story)


def test_after_a_failed_sync_nothing_is_answered():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/a", b"")
        disk.sync_fails = True
        with pytest.raises(Unavailable):
            await session.set("/a", b"x")
        disk.sync_fails = False
        with pytest.raises(Unavailable):
            await session.get("/a")

    run(story)


def test_a_full_disk_refuses_and_recovers():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/a", b"before")
        disk.room = 10
        with pytest.raises(Unavailable):
            await session.set("/a", b"too much")
        assert await session.get("/a") == (b"before", 0)
        disk.room = None
        await session.set("/a", b"after")
        assert await (await opened(disk)).session().get("/a") == (b"after", 1)

    run(story)


def test_damage_in_the_middle_of_the_journal_refuses_to_start():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/a", b"x" * 50)
        await session.create("/b", b"")
        disk.files[f"{DIR}/coordination.journal"].data[30] ^= 1
        with pytest.raises(JournalCorrupted):
            await opened(disk)

    run(story)


def test_the_journal_is_compacted_and_nothing_is_lost():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/big", b"")
        await session.create("/me", b"", ephemeral=True)
        for number in range(40):
            await session.set("/big", bytes([number]) * 50_000)
        await settle()
        journal = f"{DIR}/coordination.journal"
        assert disk.exists(f"{DIR}/coordination.snapshot")
        assert len(disk.files[journal].data) < 1_100_000
        again = (await opened(disk)).session()
        assert await again.get("/big") == (bytes([39]) * 50_000, 40)
        assert await again.exists("/me") is None

    run(story)


def test_a_crash_between_snapshot_and_cut_replays_nothing_twice():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/n", b"")
        while not disk.exists(f"{DIR}/coordination.snapshot"):
            before = bytes(disk.files[f"{DIR}/coordination.journal"].data)
            await session.set("/n", b"x" * 50_000)
            await settle()
        version = (await session.get("/n")).version
        # The journal as it was before the cut: every record is in the snapshot already.
        disk.files[f"{DIR}/coordination.journal"].data[:] = before
        assert (await (await opened(disk)).session().get("/n")).version == version

    run(story)


def test_a_damaged_snapshot_refuses_to_start():
    async def story():
        disk = MemoryDisk()
        session = (await opened(disk)).session()
        await session.create("/big", b"")
        for _ in range(30):
            await session.set("/big", b"x" * 50_000)
        await settle()
        disk.files[f"{DIR}/coordination.snapshot"].data[100] ^= 1
        with pytest.raises(JournalCorrupted):
            await opened(disk)

    run(story)
