"""The life of a broker: what outlives a stop, a kill and a power loss."""

import pytest

from tests.unit.client import batch
from tests.unit.harness import Machine, story


@story
async def test_what_was_produced_outlives_a_clean_stop(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    assert (await client.produce("t", batch(b"a", b"b"))).base_offset == 0
    await m.restart()
    client = await m.client()
    assert await client.read("t") == [b"a", b"b"]
    assert (await client.produce("t", batch(b"c"))).base_offset == 2


@story
@pytest.mark.parametrize("power", [False, True])
async def test_crash(m: Machine, power: bool) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    assert (await client.produce("t", batch(b"a", b"b"))).base_offset == 0
    await m.crash(power=power)
    await m.start()
    client = await m.client()
    assert await client.read("t") == [b"a", b"b"]
