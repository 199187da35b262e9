"""The ring of the topics that were deleted last."""

import pytest

from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import BadVersion, Create, Delete
from kbroker.metadata.recovery import deleted_topics
from kbroker.metadata.recovery.deleted_topics import DELETED_TOPICS, deletion_ops, read_deleted_topics
from kbroker.metadata.store.znodes import ROOT
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment


def ids(first: int, last: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(first, last)]


@pytest.fixture(autouse=True)
def _small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics, "NODES", 3)
    monkeypatch.setattr(deleted_topics, "IDS_PER_NODE", 4)


@async_test
async def test_the_last_deletions_are_remembered():
    store = await EmbeddedStore.open(make_environment(MemoryDisk()), "/data")
    session = store.session()
    await session.create(ROOT, b"")
    assert await read_deleted_topics(session) == frozenset()
    count = 0
    for deletions in (1, 2, 5, 1, 9, 4, 3):
        await session.multi(await deletion_ops(session, ids(count, count + deletions)))
        count += deletions
        # The node that is being filled has replaced the oldest one.
        oldest = max(0, ((count - 1) // 4 - 2) * 4)
        assert await read_deleted_topics(session) == set(ids(oldest, count))
    assert len(await session.children(DELETED_TOPICS)) == 3
    await store.close()


@async_test
async def test_deletions_of_two_controllers_do_not_overwrite_each_other():
    store = await EmbeddedStore.open(make_environment(MemoryDisk()), "/data")
    session = store.session()
    await session.multi([Create(ROOT, b""), *await deletion_ops(session, ids(0, 1))])
    late = await deletion_ops(session, ids(1, 2))
    await session.multi(await deletion_ops(session, ids(2, 3)))
    with pytest.raises(BadVersion):
        await session.multi(late)
    assert await read_deleted_topics(session) == {*ids(0, 1), *ids(2, 3)}
    await session.multi([Delete(f"{DELETED_TOPICS}/0")])
    assert await read_deleted_topics(session) == frozenset()
    await store.close()
