"""The journal against a model: after any crash, acknowledged changes are there, and nothing that was not written."""

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.interface import CoordinationError, Create, Delete, Op, Set
from kbroker.coordination.journal import decode_ops, encode_ops
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment

PATHS = ["/a", "/b", "/a/c", "/a/d", "/b/e"]
DATA = st.binary(max_size=40)
OPS = st.one_of(
    st.builds(Create, st.sampled_from(PATHS), DATA),
    st.builds(Set, st.sampled_from(PATHS), DATA),
    st.builds(Delete, st.sampled_from(PATHS)),
)
MULTIS = st.lists(OPS, min_size=1, max_size=3)
# A multi, None for a stop of the broker, or a power loss that keeps this number of unsynced bytes.
STEPS = st.lists(st.one_of(MULTIS, st.none(), st.integers(0, 120)), max_size=25)
State = dict[str, tuple[bytes, int]]


async def state_of(session: EmbeddedSession) -> State:
    nodes = await session.get_many(PATHS)
    return {path: tuple(node) for path, node in zip(PATHS, nodes, strict=True) if node is not None}  # type: ignore[misc]


async def opened(disk: MemoryDisk) -> EmbeddedSession:
    return (await EmbeddedStore.open(make_environment(disk), "/data")).session()


@settings(max_examples=150)
@given(STEPS)
@async_test
async def test_acknowledged_changes_survive(steps: list[Any]):
    disk = MemoryDisk()
    session = await opened(disk)
    for step in steps:
        before = await state_of(session)
        if step is None:
            session = await opened(disk)
            assert await state_of(session) == before
        elif isinstance(step, int):
            disk.sync_fails = True
            with suppress(CoordinationError):
                await session.create("/in-flight", b"x" * 80)
            disk.sync_fails = False
            disk.power_loss(step)
            session = await opened(disk)
            assert await state_of(session) == before
            if await session.exists("/in-flight") is not None:
                await session.delete("/in-flight")
        else:
            try:
                await session.multi(step)
            except CoordinationError:
                assert await state_of(session) == before


@given(st.lists(OPS, max_size=10))
def test_encoded_operations_are_decoded_to_the_same(ops: list[Op]):
    assert decode_ops(encode_ops(ops), 0) == ops
