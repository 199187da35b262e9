"""Group members against the real broker."""

import asyncio

import pytest

from kbroker.simulation.checker.history import Commit, Outcome, Read, TopicPartition
from kbroker.simulation.clients.group_member import (
    FencedError,
    Member,
    MemberConfig,
    range_assignor,
    round_robin_assignor,
)
from tests.unit.simulation.clients.program import Program, client_test

PARTITIONS = 6

group_test = client_test(partitions=PARTITIONS)


async def fill(program: Program, name: str = "producer") -> None:
    producer = program.producer(name)
    await asyncio.gather(*(program.send(producer, ("t", index), 5) for index in range(PARTITIONS)))


def owned(member: Member) -> list[TopicPartition]:
    return sorted(member.consumer.positions)


def counts(members: list[Member]) -> list[int]:
    """Return the number of partitions of each member."""
    return [len(owned(member)) for member in members]


async def work(members: list[Member], seconds: float) -> list[Read]:
    """Let members poll concurrently for some seconds. Returns what they read."""
    loop = members[0].consumer.cluster.loop
    deadline = loop.time() + seconds

    async def poll(member: Member) -> list[Read]:
        reads: list[Read] = []
        while loop.time() < deadline:
            reads += await member.poll()
        return reads

    return [read for reads in await asyncio.gather(*map(poll, members)) for read in reads]


@group_test
async def test_first_of_two_members_with_one_instance_id_is_fenced(program: Program) -> None:
    config = MemberConfig(instance_id="static")
    first = program.member("first", config)
    await work([first], 5)
    second = program.member("second", config)
    await work([second], 3)
    with pytest.raises(FencedError, match="static"):
        await work([first], 20)
    assert not await first.commit()
    assert program.actions(Commit, Outcome.FAILED)[-1].member == first.member_id
    assert await second.commit()


@group_test
async def test_commit_without_a_response_is_unknown(program: Program) -> None:
    await fill(program)
    member = program.member("one", timeout_s=1)
    await work([member], 5)
    program.cut_responses()
    assert not await member.commit()
    assert len(program.actions(Commit, Outcome.UNKNOWN)) == 1
    program.heal()


def test_assignors() -> None:
    topics = {"b": ["t", "u"], "a": ["t"]}
    counts = {"t": 3, "u": 2}
    assert range_assignor(topics, counts) == {
        "a": [("t", 0), ("t", 1)],
        "b": [("t", 2), ("u", 0), ("u", 1)],
    }
    assert round_robin_assignor(topics, counts) == {
        "a": [("t", 0), ("t", 2)],
        "b": [("t", 1), ("u", 0), ("u", 1)],
    }
