"""The embedded coordination service: ZooKeeper's semantics, and what survives a crash."""

import asyncio
import logging
from typing import Any

import pytest

from kbroker.coordination import embedded
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NoSpace,
    NotEmpty,
    SessionExpired,
    Set,
    Unavailable,
    WatchEvent,
)
from kbroker.coordination.journal import JournalCorrupted, unframe
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle

DIR = "/data"


async def opened(disk: MemoryDisk) -> EmbeddedStore:
    return await EmbeddedStore.open(make_environment(disk), DIR)


@async_test
async def test_a_set_with_the_wrong_version_fails():
    session = (await opened(MemoryDisk())).session()
    await session.create("/a", b"one")
    assert await session.get("/a") == Node(b"one", 0)
    assert await session.set("/a", b"two", 0) == 1
    with pytest.raises(BadVersion):
        await session.set("/a", b"three", 0)
    assert await session.get("/a") == Node(b"two", 1)
    assert await session.set("/a", b"three") == 2
    with pytest.raises(BadVersion):
        await session.delete("/a", 1)
    await session.delete("/a", 2)
    assert await session.exists("/a") is None


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
@async_test
async def test_a_multi_makes_all_changes_or_none(op: Any, error: type[CoordinationError]):
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/a", b"")
    await session.create("/a/child", b"")
    await session.create("/ephemeral", b"", ephemeral=True)
    before = disk.read(f"{DIR}/coordination.journal")
    with pytest.raises(error):
        await session.multi([Create("/new", b""), Set("/a", b"changed"), Delete("/a/child"), Create("/a/x", b""), op])
    assert await session.exists("/new") is None
    assert await session.get("/a") == Node(b"", 0)
    assert await session.children("/a") == ["child"]
    assert disk.read(f"{DIR}/coordination.journal") == before


@async_test
async def test_get_many_returns_none_for_nodes_that_do_not_exist():
    session = (await opened(MemoryDisk())).session()
    await session.create("/a", b"1")
    assert await session.get_many(["/a", "/b"]) == [Node(b"1", 0), None]


@async_test
async def test_ephemeral_nodes_are_deleted_with_their_session_and_are_never_on_disk():
    disk = MemoryDisk()
    store = await opened(disk)
    first, second = store.session(), store.session()
    await first.create("/brokers", b"")
    await first.multi([Create("/brokers/1", b"one", ephemeral=True), Set("/brokers/1", b"uno")])
    await second.create("/brokers/2", b"two", ephemeral=True)
    assert await second.children("/brokers") == ["1", "2"]
    await first.close()
    assert await second.children("/brokers") == ["2"]
    with pytest.raises(SessionExpired):
        await first.get("/brokers")
    assert await (await opened(disk)).session().children("/brokers") == []


@async_test
async def test_an_expired_session_calls_back():
    session = (await opened(MemoryDisk())).session()
    events = []
    session.on_expired(lambda: events.append(True))
    await session.create("/me", b"", ephemeral=True)
    await session.expire()
    assert events == [True]
    with pytest.raises(SessionExpired):
        await session.exists("/me")


@async_test
async def test_watches_fire_once_after_the_change_is_durable():
    disk = MemoryDisk()
    store = await opened(disk)
    writer, reader = store.session(), store.session()
    events: list[tuple[WatchEvent, int]] = []

    def watch(event: WatchEvent) -> None:
        events.append((event, disk.syncs))

    assert await reader.exists("/a", watch) is None
    await writer.create("/a", b"")
    await settle()
    assert events == [(("created", "/a"), 1)]
    await reader.get("/a", watch)
    await reader.get("/a", watch)
    await reader.children("/a", watch)
    await writer.set("/a", b"x")
    await writer.set("/a", b"y")
    await writer.create("/a/b", b"")
    await writer.delete("/a/b")
    await settle()
    assert [event for event, _ in events[1:]] == [("changed", "/a"), ("children", "/a")]
    with pytest.raises(NoNode):
        await reader.get("/none", watch)
    await writer.create("/none", b"")
    await reader.children("/a", watch)
    await writer.delete("/a")
    await settle()
    assert [event for event, _ in events[3:]] == [("deleted", "/a")]


@async_test
async def test_an_event_comes_before_a_read_that_has_the_change():
    store = await opened(MemoryDisk())
    writer, reader = store.session(), store.session()
    await writer.create("/a", b"")
    order: list[Any] = []
    await reader.get("/a", order.append)
    write = asyncio.create_task(writer.set("/a", b"x"))
    # This read is made after the write, and its watch is set after the change.
    read = asyncio.create_task(reader.get("/a", lambda event: order.append("second watch")))
    read.add_done_callback(lambda _: order.append("read"))
    await asyncio.gather(write, read)
    await settle()
    assert order == [WatchEvent("changed", "/a"), "read"]
    await writer.set("/a", b"y")
    await settle()
    assert order[2:] == ["second watch"]


@async_test
async def test_an_event_comes_after_the_read_that_has_set_its_watch():
    """Even if the read and the change share a commit: over the network, the event would find no watch."""
    store = await opened(MemoryDisk())
    writer, reader = store.session(), store.session()
    await writer.create("/brokers", b"")
    order: list[Any] = []

    async def read() -> None:
        order.append(await reader.children("/brokers", order.append))

    async def write() -> None:
        await writer.create("/brokers/2", b"")
        order.append("written")

    await asyncio.gather(read(), write())
    await settle()
    assert order == [[], WatchEvent("children", "/brokers"), "written"]


@async_test
async def test_waiting_operations_share_one_sync():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/n", b"")
    start = disk.syncs
    await asyncio.gather(*(session.create(f"/n/{i}", b"") for i in range(100)))
    assert disk.syncs - start <= 2
    assert len(await session.children("/n")) == 100


@async_test
async def test_acknowledged_changes_survive_a_power_loss_and_torn_records_are_dropped():
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
        records = unframe(bytes(disk.files[f"{DIR}/coordination.journal"].data), synced)
        again = (await opened(disk)).session()
        assert await again.get("/a") == Node(b"kept too", 1)
        assert await again.exists("/b") is None
        assert (await again.exists("/c") is None) == (records is None)
        await again.create("/d", b"after")
        assert await (await opened(disk)).session().get("/d") == Node(b"after", 0)


@async_test
async def test_after_a_failed_sync_every_operation_fails():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/a", b"")
    disk.sync_fails = True
    with pytest.raises(Unavailable):
        await session.set("/a", b"x")
    disk.sync_fails = False
    with pytest.raises(Unavailable):
        await session.get("/a")


@async_test
async def test_changes_fail_while_the_disk_is_full():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/a", b"before")
    disk.room = 10
    with pytest.raises(Unavailable):
        await session.set("/a", b"too much")
    assert await session.get("/a") == Node(b"before", 0)
    disk.room = None
    await session.set("/a", b"after")
    assert await (await opened(disk)).session().get("/a") == Node(b"after", 1)


@async_test
async def test_a_start_with_a_damaged_journal_fails():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/a", b"x" * 50)
    await session.create("/b", b"")
    disk.files[f"{DIR}/coordination.journal"].data[30] ^= 1
    with pytest.raises(JournalCorrupted):
        await opened(disk)


@async_test
async def test_the_journal_is_compacted_without_loss():
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
    assert await again.get("/big") == Node(bytes([39]) * 50_000, 40)
    assert await again.exists("/me") is None


@async_test
async def test_a_crash_before_the_truncation_of_a_compacted_journal_replays_nothing_twice():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/n", b"")
    while not disk.exists(f"{DIR}/coordination.snapshot"):
        before = bytes(disk.files[f"{DIR}/coordination.journal"].data)
        await session.set("/n", b"x" * 50_000)
        await settle()
    version = (await session.get("/n")).version
    # The journal before it was truncated: every record is in the snapshot, too.
    disk.files[f"{DIR}/coordination.journal"].data[:] = before
    assert (await (await opened(disk)).session().get("/n")).version == version


@async_test
async def test_a_start_with_a_damaged_snapshot_fails():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.create("/big", b"")
    for _ in range(30):
        await session.set("/big", b"x" * 50_000)
    await settle()
    disk.files[f"{DIR}/coordination.snapshot"].data[100] ^= 1
    with pytest.raises(JournalCorrupted):
        await opened(disk)


# Files are removed while the store runs.

JOURNAL, SNAPSHOT = f"{DIR}/coordination.journal", f"{DIR}/coordination.snapshot"
REMOVED = [[SNAPSHOT], [JOURNAL], [SNAPSHOT, JOURNAL]]


async def with_both_files(disk: MemoryDisk) -> EmbeddedStore:
    """Return a store whose node /a is in the snapshot and whose node /b is in the journal."""
    first = await opened(disk)
    await first.session().create("/a", b"in the snapshot")
    await first.close()
    store = await opened(disk)
    await store.session().create("/b", b"in the journal")
    assert disk.files.keys() == {SNAPSHOT, JOURNAL}
    return store


async def nodes(disk: MemoryDisk) -> list[str]:
    return await (await opened(disk)).session().children("")


@pytest.mark.parametrize("removed", REMOVED)
@async_test
async def test_removed_files_are_rewritten_with_the_next_change(removed: list[str], caplog: pytest.LogCaptureFixture):
    disk = MemoryDisk()
    session = (await with_both_files(disk)).session()
    for path in removed:
        del disk.files[path]
    await session.create("/c", b"")
    # Before the call returns: the process may be killed now.
    assert await nodes(disk) == ["a", "b", "c"]
    await session.create("/d", b"")
    assert await nodes(disk) == ["a", "b", "c", "d"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "coordination files were missing, rewritten" in line
    assert all(path in line for path in removed)


@pytest.mark.parametrize("removed", REMOVED)
@async_test
async def test_removed_files_are_rewritten_by_a_clean_stop(removed: list[str]):
    disk = MemoryDisk()
    store = await with_both_files(disk)
    for path in removed:
        del disk.files[path]
    await store.close()
    assert await nodes(disk) == ["a", "b"]


@pytest.mark.parametrize("removed", REMOVED)
@async_test
async def test_removed_files_are_rewritten_even_if_nothing_changes(removed: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "FILE_CHECK_INTERVAL_S", 0.001)
    disk = MemoryDisk()
    await with_both_files(disk)
    for path in removed:
        del disk.files[path]
    async with asyncio.timeout(60):
        while disk.files.keys() != {SNAPSHOT, JOURNAL}:
            await asyncio.sleep(0.001)
    await settle()
    assert await nodes(disk) == ["a", "b"]


@async_test
async def test_removed_files_that_cannot_be_rewritten_are_logged_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        disk = MemoryDisk()
        session = (await with_both_files(disk)).session()
        del disk.files[SNAPSHOT]
        for _ in range(3):
            # There is room for a change, but not for a snapshot.
            disk.room = 30
            await session.set("/a", b"x")
        disk.room = None
        await session.set("/b", b"z")
        assert await nodes(disk) == ["a", "b"]
    messages = [record.getMessage().partition(" files=")[0] for record in caplog.records]
    assert messages == [
        "coordination files are missing and cannot be rewritten",
        "coordination files were missing, rewritten",
    ]


@async_test
async def test_a_start_without_the_snapshot_fails_and_names_it():
    disk = MemoryDisk()
    await with_both_files(disk)
    del disk.files[SNAPSHOT]
    with pytest.raises(
        JournalCorrupted, match=f"it begins with change 2, and {SNAPSHOT}, which has those before, is missing"
    ):
        await opened(disk)


@async_test
async def test_a_start_with_a_gap_in_the_journal_fails():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    records = [0]
    for name in "abc":
        await session.create(f"/{name}", b"")
        records.append(len(disk.files[JOURNAL].data))
    data = disk.files[JOURNAL].data
    data[:] = data[: records[1]] + data[records[2] :]
    with pytest.raises(JournalCorrupted, match="changes 2 to 2 are missing"):
        await opened(disk)


@async_test
async def test_a_start_without_the_journal_logs_that_changes_are_lost(caplog: pytest.LogCaptureFixture):
    disk = MemoryDisk()
    await with_both_files(disk)
    del disk.files[JOURNAL]
    assert await nodes(disk) == ["a"]
    assert "coordination file missing at startup" in caplog.text


# A full disk.


@async_test
async def test_per_session_writes_stay_in_memory_while_the_disk_is_full():
    disk = MemoryDisk()
    session = (await opened(disk)).session()
    await session.multi([Create("/epoch", b""), Create("/other", b"")])
    disk.room = 0
    await session.multi([Set("/epoch", b"1", 0, per_session=True), Create("/me", b"", ephemeral=True)])
    assert await session.get("/epoch") == Node(b"1", 1)
    with pytest.raises(NoSpace):
        await session.multi([Set("/epoch", b"2", per_session=True), Set("/other", b"x")])
    assert await session.get("/epoch") == Node(b"1", 1)
    assert await (await opened(disk)).session().get("/epoch") == Node(b"", 0), "nothing came of it"
    disk.room = None
    await session.set("/other", b"y")
    again = (await opened(disk)).session()
    assert await again.get("/epoch") == Node(b"1", 1)
    assert await again.get("/other") == Node(b"y", 1)
