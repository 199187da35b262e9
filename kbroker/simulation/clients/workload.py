"""Programs that use the clients as applications do: they go on through any fault until they have done their part or are
told to stop, and leave no operation without an end.

Each draws its own way of doing it from the Random that it is given: versions, sizes, codecs, sessions, timeouts.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.assignors import ASSIGNORS
from kbroker.simulation.clients.bootstrap import NO_EPOCH, Cluster
from kbroker.simulation.clients.connection import Address
from kbroker.simulation.clients.consumer import Consumer, ConsumerConfig, Position
from kbroker.simulation.clients.group import FencedError, Member, MemberConfig
from kbroker.simulation.clients.group_offsets import Bookmarks
from kbroker.simulation.clients.lane import NO_IDENTITY
from kbroker.simulation.clients.offsets import EARLIEST, LATEST, NO_OFFSET, RefusedError, list_offset
from kbroker.simulation.clients.producer import ACKS_ALL, Producer, ProducerConfig
from kbroker.simulation.clients.values import CorruptRecordError, Shape, Values
from kbroker.simulation.clients.versions import newest, older
from kbroker.simulation.history import Corrupt, History, Operation, Outcome, Place, Read
from protocol.apis import ApiKey
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

FIRST_PRODUCE_WITH_ZSTD = 7
# Shares of a timeout, one for each client.
PATIENCE = (0.03, 0.2, 1.0)
REFUSED_PAUSE_S = 0.2
# What a batch that cannot be read may claim to hold, for a consumer that steps over it.
MAX_STEP = 10_000


@dataclass(slots=True)
class Stop:
    """Tells programs to come to an end. `settled`: members of groups stay what they are until then."""

    asked: bool = False
    settled: bool = False

    def ask(self) -> None:
        self.asked = True


@dataclass(slots=True)
class Setting:
    """What all programs of a run share. `old_versions`: how many of the clients are of an earlier time."""

    loop: asyncio.AbstractEventLoop
    history: History
    bootstrap: Sequence[Address]
    stop: Stop = field(default_factory=Stop)
    old_versions: float = 0.5
    timeout_s: float = 5.0

    def cluster(self, name: str, random: Random, *, static_members: bool = False, patient: bool = False) -> Cluster:
        """Impatient clients ask again while the broker still works on what they have asked for."""
        caps = older(random, static_members=static_members) if random.random() < self.old_versions else newest()
        timeout_s = self.timeout_s * (1.0 if patient else random.choice(PATIENCE))
        return Cluster(self.loop, self.bootstrap, random, name, caps=caps, timeout_s=timeout_s)


# Producers.


async def produce(
    setting: Setting,
    name: str,
    random: Random,
    values: Values,
    places: Sequence[Place],
    count: int,
    *,
    idempotent: bool = True,
    acks: int = ACKS_ALL,
    keys: int = 0,
    max_padding: int = 2_000,
    pause_s: float = 0.02,
    delivery_timeout_s: float = 20.0,
    restarts: float = 0.01,
) -> None:
    """Send `count` batches to partitions in any order. `restarts`: how often the producer is closed in the middle of
    its work and another one goes on, under a name of its own."""
    lives = 0
    previous = NO_IDENTITY
    sent = 0
    while sent < count and not setting.stop.asked:
        cluster = setting.cluster(name, random)
        config = ProducerConfig(
            idempotent=idempotent,
            acks=acks,
            max_in_flight=random.randint(1, 5),
            delivery_timeout_s=random.choice(PATIENCE) * delivery_timeout_s,
            shape=Shape(max_padding, keys, _codecs(cluster, random)),
            previous=previous if random.random() < 0.5 else NO_IDENTITY,
        )
        producer = Producer(cluster, setting.history, f"{name}.{lives}", random, config)
        lives += 1
        try:
            sent += await _send(setting, producer, random, values, places, count - sent, pause_s, restarts)
        finally:
            previous = producer.identity
            producer.close()


async def _send(
    setting: Setting,
    producer: Producer,
    random: Random,
    values: Values,
    places: Sequence[Place],
    count: int,
    pause_s: float,
    restarts: float,
) -> int:
    """One producer's life; gives how many batches it has sent."""
    most = random.choice((1, 3, 10, 30))
    waiting: dict[asyncio.Future[Operation], None] = {}
    refused = False

    def ended(done: asyncio.Future[Operation]) -> None:
        nonlocal refused
        waiting.pop(done)
        refused = done.result().outcome is Outcome.FAILED

    for sent in range(count):
        if setting.stop.asked or random.random() < restarts:
            return sent
        size = random.choice((1, 1, 2, 5, 20))
        done = producer.send(random.choice(places), values.take(size))
        waiting[done] = None
        done.add_done_callback(ended)
        while len(waiting) >= most and not setting.stop.asked:
            await asyncio.wait(list(waiting), return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
        if refused or random.random() < 0.5:
            # What was refused at once would be refused as fast as it can be sent.
            await asyncio.sleep(random.random() * (REFUSED_PAUSE_S if refused else 2 * pause_s))
    while waiting and not setting.stop.asked:
        await asyncio.wait(list(waiting), timeout=1.0)
    return count


def _codecs(cluster: Cluster, random: Random) -> Sequence[int]:
    codecs = [NONE, GZIP, SNAPPY, LZ4]
    if cluster.caps.get(ApiKey.PRODUCE, FIRST_PRODUCE_WITH_ZSTD) >= FIRST_PRODUCE_WITH_ZSTD:
        codecs.append(ZSTD)
    return codecs if random.random() < 0.3 else [random.choice([NONE, *codecs])]


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
        _step_over(setting, consumer, name, error)
        return []


def _step_over(setting: Setting, consumer: Consumer, name: str, error: CorruptRecordError) -> None:
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
            _step_over(setting, member.consumer, name, error)
        if random.random() < commits:
            await member.commit()
    return polls


# Deletion.


async def trim(setting: Setting, name: str, random: Random, places: Sequence[Place], pause_s: float = 1.0) -> None:
    """Delete the oldest records of one partition after another, few at a time."""
    cluster = setting.cluster(name, random)
    admin = Admin(cluster, setting.history, name)
    while not setting.stop.asked:
        place = random.choice(places)
        try:
            start, _ = await list_offset(cluster, place, EARLIEST)
            end, _ = await list_offset(cluster, place, LATEST)
        except OSError:
            await cluster.rest()
        else:
            await admin.delete_records(place, random.randint(start, start + (end - start) // 3))
            await asyncio.sleep(random.random() * 2 * pause_s)
    admin.close()


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
