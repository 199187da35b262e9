"""Group members against the real broker."""

import asyncio

import pytest

from kbroker.simulation.checker.history import Assign, Commit, Join, OffsetFetch, Outcome, Read, TopicPartition
from kbroker.simulation.clients.connections.versions import draw_older_versions
from kbroker.simulation.clients.group_member import (
    FencedError,
    Member,
    MemberConfig,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_assignor,
    round_robin_assignor,
)
from kbroker.simulation.clients.group_offsets import committed
from protocol.errors import ErrorCode
from tests.sampling import third_of
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


async def committed_offsets(program: Program) -> dict[TopicPartition, int]:
    """Return the committed offsets."""
    cluster = program.cluster("reader of offsets")
    coordinator = await cluster.coordinator("g")
    await cluster.refresh_metadata(["t"])
    offsets = await committed(cluster, coordinator, "g", cluster.partitions(["t"]))
    return {tp: offset for tp, (offset, _) in offsets.items() if offset >= 0}


@group_test
async def test_three_members_share_the_partitions(program: Program) -> None:
    await fill(program)
    members = [program.member(f"m{number}") for number in range(3)]
    reads = await work(members, 30)
    assert sorted({read.value for read in reads}) == list(range(30))
    assert counts(members) == [2, 2, 2]
    assert sorted(tp for member in members for tp in owned(member)) == [("t", index) for index in range(PARTITIONS)]
    joins = [join for join in program.actions(Join) if join.generation == members[0].generation]
    assert sorted(join.partitions for join in joins) == sorted(tuple(owned(member)) for member in members)
    assert [await member.commit() for member in members] == [True] * 3
    assert await committed_offsets(program) == {("t", index): 5 for index in range(PARTITIONS)}
    await asyncio.gather(*(member.leave() for member in members))


@group_test
async def test_next_member_continues_from_the_committed_offsets(program: Program) -> None:
    await fill(program)
    first = program.member("first")
    await work([first], 5)
    assert await first.commit()
    await first.leave()
    await fill(program, "second producer")
    second = program.member("second")
    reads = await work([second], 5)
    assert sorted(read.value for read in reads) == list(range(30, 60))
    fetches = [fetch for fetch in program.actions(OffsetFetch) if set(fetch.offsets.values()) == {5}]
    assert len(fetches) == 1
    assert program.actions(Assign)[-1].reason == "rebalance"


@group_test
async def test_positions_are_committed_before_a_rebalance(program: Program) -> None:
    await fill(program)
    first = program.member("first")
    assert len(await work([first], 5)) == 30
    second = program.member("second")
    assert await work([first, second], 20) == []
    assert counts([first, second]) == [3, 3]
    assert set((await committed_offsets(program)).values()) == {5}


@group_test
async def test_partitions_of_a_crashed_member_are_reassigned(program: Program) -> None:
    members = [program.member(f"m{number}") for number in range(2)]
    await work(members, 20)
    assert counts(members) == [3, 3]
    members[0].close_without_leaving()
    await work(members[1:], 30)
    assert len(owned(members[1])) == PARTITIONS


@group_test
async def test_expired_member_cannot_commit_and_rejoins(program: Program) -> None:
    await fill(program)
    member, other = program.member("one"), program.member("other")
    await work([member], 5)
    member._stop_heartbeats()
    await work([other], 30)
    assert len(owned(other)) == PARTITIONS
    assert not await member.commit()
    assert program.actions(Commit, Outcome.FAILED)[-1].member == member.member_id or member.member_id == ""
    await work([member, other], 20)
    assert [len(owned(member)), len(owned(other))] == [3, 3]


@group_test
async def test_member_of_an_old_generation_cannot_commit(program: Program) -> None:
    """It must not commit without a generation either, which the coordinator of an empty group accepts."""
    await fill(program)
    member = program.member("one")
    await work([member], 5)
    member._handle_error(ErrorCode.UNKNOWN_MEMBER_ID)
    assert not await member.commit()
    assert [operation for operation in program.history.operations if isinstance(operation.action, Commit)] == []


@group_test
async def test_static_member_returns_to_its_partitions(program: Program) -> None:
    config = MemberConfig(instance_id="static")
    first, other = program.member("first", config), program.member("other")
    await work([first, other], 20)
    before, generation = owned(first), first.generation
    first.close_without_leaving()
    again = program.member("again", config)
    await work([again, other], 4)
    assert (owned(again), again.generation) == (before, generation)
    assert [join.instance for join in program.actions(Join)][-1] == "static"


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
async def test_new_partitions_are_assigned(program: Program) -> None:
    members = [program.member(f"m{number}") for number in range(2)]
    await work(members, 20)
    await program.admin().create_partitions("t", 8)
    await work(members, 30)
    assert counts(members) == [4, 4]


@group_test
async def test_restarted_coordinator_is_found(program: Program) -> None:
    await fill(program)
    members = [program.member(f"m{number}", timeout_s=2) for number in range(3)]
    await work(members, 15)
    assert [await member.commit() for member in members] == [True] * 3
    await program.machine.crash()
    assert [await member.commit() for member in members] == [False] * 3
    await program.machine.start()
    await fill(program, "second producer")
    reads = await work(members, 30)
    assert {read.value for read in reads} >= set(range(30, 60))
    assert [await member.commit() for member in members] == [True] * 3
    assert set((await committed_offsets(program)).values()) == {10}


@group_test
async def test_commit_without_a_response_is_unknown(program: Program) -> None:
    await fill(program)
    member = program.member("one", timeout_s=1)
    await work([member], 5)
    program.cut_responses()
    assert not await member.commit()
    assert len(program.actions(Commit, Outcome.UNKNOWN)) == 1
    program.heal()


@pytest.mark.parametrize("seed", third_of(range(8)))
@group_test
async def test_members_with_older_versions(program: Program, seed: int) -> None:
    await fill(program)
    members = []
    for number in range(2):
        config = MemberConfig(instance_id="static") if number == seed % 3 else MemberConfig()
        caps = draw_older_versions(program.random(f"caps {number}"), static_members=config.instance_id is not None)
        members.append(program.member(f"m{number}", config, caps=caps))
    reads = await work(members, 30)
    assert sorted({read.value for read in reads}) == list(range(30))
    assert [await member.commit() for member in members] == [True, True]
    assert counts(members) == [3, 3]
    await asyncio.gather(*(member.leave() for member in members))
    assert await committed_offsets(program) == {("t", index): 5 for index in range(PARTITIONS)}


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


def test_assignment_and_subscription_round_trip() -> None:
    partitions = [("t", 2), ("u", 0), ("t", 4)]
    assert sorted(decode_assignment(encode_assignment(partitions))) == sorted(partitions)
    assert decode_assignment(b"") == []
    assert decode_subscription(encode_subscription(["t", "u"])) == ["t", "u"]
