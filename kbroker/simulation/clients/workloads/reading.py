"""Programs that read: consumers, members of groups, and what looks at the end whether all is there (workload.py)."""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.simulation.checker.history import Corrupt, Place, Read
from kbroker.simulation.clients.connections.cluster import NO_EPOCH, Cluster
from kbroker.simulation.clients.consumer.assignors import ASSIGNORS
from kbroker.simulation.clients.consumer.consumer import Consumer, ConsumerConfig, Position
from kbroker.simulation.clients.consumer.group_offsets import Bookmarks
from kbroker.simulation.clients.consumer.member import FencedError, Member, MemberConfig
from kbroker.simulation.clients.consumer.offset_lookup import EARLIEST, LATEST, NO_OFFSET, RefusedError, list_offset
from kbroker.simulation.clients.workloads.values import CorruptRecordError
from kbroker.simulation.clients.workloads.workload import Setting

# What a batch that cannot be read may claim to hold, for a consumer that steps over it.
MAX_STEP = 10_000


# Consumers.


async def consume_assigned(
    setting: Setting,
    name: str,
    random: Random,
    places: Sequence[Place],
    polls: int,
    *,
    committed_only: bool = False,
    restarts: float = 0.01,
    seeks: float = 0.01,
    group: str | None = None,
    commits: float = 0.05,
) -> None:
    """Poll partitions from their beginnings so many times; at times begin again as another consumer, or go
    elsewhere. What cannot be read is told and stepped over. With a group, of which it is no member, it commits at
    times, and begins where it has committed."""
    done = 0
    while done < polls and not setting.stop.asked:
        config = ConsumerConfig.some(random, committed_only=committed_only)
        consumer = Consumer(setting.cluster(name, random), setting.history, name, random, config)
        bookmarks = None if group is None else Bookmarks(consumer.cluster, setting.history, name, group)
        try:
            starts = await _beginnings(setting, consumer.cluster, places, bookmarks)
            if starts is None:
                return
            consumer.assign(starts)
            while done < polls and not setting.stop.asked and random.random() >= restarts:
                done += 1
                await _poll(setting, consumer, name)
                if bookmarks is not None and random.random() < commits:
                    await bookmarks.keep(consumer.committable())
                if random.random() < seeks:
                    place = random.choice(places)
                    at = _at(consumer, place)
                    consumer.seek(place, random.randint(min(starts[place].offset, at), at))
        finally:
            consumer.close()


def _at(consumer: Consumer, place: Place) -> int:
    return consumer.positions[place].offset


async def _beginnings(
    setting: Setting, cluster: Cluster, places: Sequence[Place], bookmarks: Bookmarks | None
) -> dict[Place, Position] | None:
    """None if the program is told to stop before they are known."""
    found: dict[Place, Position] = {}
    while not setting.stop.asked:
        try:
            await cluster.refresh(list(dict.fromkeys(topic for topic, _ in places)))
            kept = {} if bookmarks is None else await bookmarks.read(places)
            for place in places:
                offset, epoch = kept.get(place, (NO_OFFSET, NO_EPOCH))
                if offset == NO_OFFSET:
                    offset, epoch = (await list_offset(cluster, place, EARLIEST))[0], NO_EPOCH
                found[place] = Position(offset, epoch)
        except (OSError, RefusedError):
            await cluster.rest()
        else:
            return found
    return None


async def _poll(setting: Setting, consumer: Consumer, name: str) -> list[Read]:
    try:
        return await consumer.poll()
    except CorruptRecordError as error:
        step_over(setting, consumer, name, error)
        return []


def step_over(setting: Setting, consumer: Consumer, name: str, error: CorruptRecordError) -> None:
    at = consumer.positions[error.place].offset
    setting.history.happened(name, Corrupt(error.place, at, str(error)))
    to = error.next_offset if at < error.next_offset <= at + MAX_STEP else at + 1
    consumer.seek(error.place, to)


async def consume_group(
    setting: Setting,
    name: str,
    random: Random,
    group: str,
    topics: Sequence[str],
    polls: int,
    *,
    static: float = 0.3,
    committed_only: bool = False,
    restarts: float = 0.01,
    commits: float = 0.2,
) -> None:
    """A member of a group that polls and commits; at times it leaves or dies and comes again, as a static member
    under its own name. Fenced, it begins anew."""
    instance = f"{name}-instance" if random.random() < static else None
    done = 0
    while done < polls and not setting.stop.asked:
        cluster = setting.cluster(name, random, static_members=instance is not None)
        config = ConsumerConfig.some(random, committed_only=committed_only)
        consumer = Consumer(cluster, setting.history, name, random, config)
        session_s = random.choice((6, 10))
        settings = MemberConfig(
            instance_id=instance,
            session_timeout_ms=session_s * 1000,
            rebalance_timeout_ms=random.choice((8_000, 15_000)),
            heartbeat_s=session_s / random.choice((4, 6)),
            assignors=random.sample(list(ASSIGNORS), 2),
        )
        member = Member(consumer, setting.history, name, group, topics, random, settings)
        try:
            done += await _be_member(setting, member, name, random, polls - done, restarts, commits)
            if random.random() < 0.5 and not setting.stop.asked:
                await member.leave()
        finally:
            member.die()


async def _be_member(
    setting: Setting, member: Member, name: str, random: Random, polls: int, restarts: float, commits: float
) -> int:
    """One life of a member; gives how often it has polled."""
    for done in range(polls):
        if setting.stop.asked or (random.random() < restarts and not setting.stop.settled):
            return done
        try:
            await member.poll()
        except FencedError:
            return done + 1
        except CorruptRecordError as error:
            step_over(setting, member.consumer, name, error)
        if random.random() < commits:
            await member.commit()
    return polls


# The end.


async def final_reads(
    setting: Setting,
    random: Random,
    places: Sequence[Place],
    *,
    committed_only: bool = False,
    deadline_s: float = 120.0,
) -> list[Place]:
    """When faults are over: read each partition from where its log starts to its end, each with connections of its
    own. Gives the partitions of which the end was not reached in time, which must be none.

    `history.begin_final_reads()` comes before, and no writer is left.
    """
    readers = [
        setting.loop.create_task(_read_to_the_end(setting, Random(random.random()), place, committed_only))
        for place in places
    ]
    if not readers:
        return []
    await asyncio.wait(readers, timeout=deadline_s)
    late = [not reader.done() and reader.cancel() for reader in readers]
    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return [place for place, is_late in zip(places, late, strict=True) if is_late]


async def _read_to_the_end(setting: Setting, random: Random, place: Place, committed_only: bool) -> None:
    name = f"final-{place[0]}-{place[1]}"
    cluster = setting.cluster(name, random, patient=True)
    consumer = Consumer(cluster, setting.history, name, random, ConsumerConfig(committed_only=committed_only))
    try:
        while True:
            try:
                start, _ = await list_offset(cluster, place, EARLIEST)
                end, _ = await list_offset(cluster, place, LATEST, committed_only=committed_only)
                break
            except OSError:
                await cluster.rest()
        consumer.assign({place: start})
        while _at(consumer, place) < end:
            await _poll(setting, consumer, name)
    finally:
        consumer.close()
