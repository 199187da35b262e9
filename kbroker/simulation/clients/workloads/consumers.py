"""Workloads that read: standalone consumers, group members, and the final reads of every partition."""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.simulation.checker.history import Corrupt, Read, TopicPartition
from kbroker.simulation.clients.cluster import Cluster, RefusedError
from kbroker.simulation.clients.consumer import Consumer, ConsumerConfig, Position
from kbroker.simulation.clients.consumer_protocol_member import ConsumerProtocolMember
from kbroker.simulation.clients.group_member import FencedError, Member, MemberConfig
from kbroker.simulation.clients.group_offsets import (
    EARLIEST,
    LATEST,
    GroupOffsets,
    list_offset,
    start_offsets,
)
from kbroker.simulation.clients.records import CorruptRecordError
from kbroker.simulation.clients.workloads.context import WorkloadContext

# The largest number of offsets that a consumer skips for one unreadable batch: its header may be corrupt as well.
MAX_STEP = 10_000
# Probabilities per poll: of a new consumer, of a seek backwards, and of a commit without and with membership.
RESTARTS, SEEKS = 0.01, 0.01
STANDALONE_COMMITS, MEMBER_COMMITS = 0.05, 0.2
# The share of static members.
STATIC_MEMBERS = 0.3
# The share of members with the classic protocol in a group of the consumer protocol.
CLASSIC_MEMBERS = 0.3
FINAL_READS_TIMEOUT_S = 120.0


async def consume_assigned(
    context: WorkloadContext,
    name: str,
    random: Random,
    partitions: Sequence[TopicPartition],
    *,
    committed_only: bool,
    group: str | None,
) -> None:
    """Poll assigned partitions until stopped, starting at their log start offsets.

    With a `group` the consumer commits to it without being a member, and starts at the committed offsets.
    Corrupt batches are recorded in the history and skipped.
    """
    while not context.stop.requested:
        config = ConsumerConfig.draw(random, committed_only=committed_only, rack=context.rack)
        consumer = Consumer(context.cluster(name, random), context.history, name, random, config)
        group_offsets = None if group is None else GroupOffsets(consumer.cluster, context.history, name, group)
        try:
            starts = await _start_positions(context, consumer.cluster, partitions, group_offsets)
            if starts is None:
                return
            consumer.assign(starts)
            while not context.stop.requested and random.random() >= RESTARTS:
                await _poll(context, consumer, name)
                if group_offsets is not None and random.random() < STANDALONE_COMMITS:
                    await group_offsets.commit(consumer.committable())
                if random.random() < SEEKS:
                    tp = random.choice(partitions)
                    at = consumer.positions[tp].offset
                    consumer.seek(tp, random.randint(min(starts[tp].offset, at), at))
        finally:
            consumer.close()


async def _start_positions(
    context: WorkloadContext,
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    group_offsets: GroupOffsets | None,
) -> dict[TopicPartition, Position] | None:
    """Return the committed offsets, or else the log start offsets. None if stopped before they are known."""
    while not context.stop.requested:
        try:
            await cluster.refresh_metadata(list(dict.fromkeys(topic for topic, _ in partitions)))
            committed = {} if group_offsets is None else await group_offsets.committed(partitions)
            starts = await start_offsets(cluster, partitions, committed)
            return {tp: Position(*start) for tp, start in starts.items()}
        except (OSError, RefusedError):
            await cluster.backoff()
    return None


async def _poll(context: WorkloadContext, consumer: Consumer, name: str) -> list[Read]:
    try:
        return await consumer.poll()
    except CorruptRecordError as error:
        skip_corrupt_batch(context, consumer, name, error)
        return []


def skip_corrupt_batch(context: WorkloadContext, consumer: Consumer, name: str, error: CorruptRecordError) -> None:
    at = consumer.positions[error.tp].offset
    context.history.record(name, Corrupt(error.tp, at, str(error)))
    to = error.next_offset if at < error.next_offset <= at + MAX_STEP else at + 1
    consumer.seek(error.tp, to)


async def consume_group(
    context: WorkloadContext,
    name: str,
    random: Random,
    group: str,
    topics: Sequence[str],
    *,
    committed_only: bool,
    consumer_protocol: bool = False,
) -> None:
    """Run a group member that polls and commits until stopped, and sometimes leaves or crashes and rejoins.

    A static member keeps its instance id. A fenced member starts over.
    """
    instance = f"{name}-instance" if random.random() < STATIC_MEMBERS else None
    while not context.stop.requested:
        cluster = context.cluster(
            name, random, static_members=instance is not None, consumer_protocol=consumer_protocol
        )
        config = ConsumerConfig.draw(random, committed_only=committed_only, rack=context.rack)
        consumer = Consumer(cluster, context.history, name, random, config)
        settings = MemberConfig.draw(random, instance_id=instance)
        # Some members return with the other protocol: the group changes its kind while it is used.
        is_classic = not consumer_protocol or random.random() < CLASSIC_MEMBERS
        kind = Member if is_classic else ConsumerProtocolMember
        member = kind(consumer, context.history, name, group, topics, random, settings)
        try:
            await _run_member(context, member, name, random)
            if random.random() < 0.5 and not context.stop.requested:
                await member.leave()
        finally:
            member.close_without_leaving()


async def _run_member(context: WorkloadContext, member: Member, name: str, random: Random) -> None:
    """Poll until the member is fenced, restarts or is stopped."""
    while not context.stop.requested and (random.random() >= RESTARTS or context.stop.draining):
        try:
            await member.poll()
        except FencedError:
            return
        except CorruptRecordError as error:
            skip_corrupt_batch(context, member.consumer, name, error)
        if random.random() < MEMBER_COMMITS:
            await member.commit()


# Final reads.


async def final_reads(
    context: WorkloadContext,
    random: Random,
    partitions: Sequence[TopicPartition],
    *,
    committed_only: bool,
) -> list[TopicPartition]:
    """Read each partition from its log start to its end, after the faults have ended. Each has its own connections.

    Returns the partitions whose end was not reached before the deadline, which must be none. Call
    `history.begin_final_reads()` before; no client may be writing.
    """
    readers = [
        context.loop.create_task(_read_to_the_end(context, Random(random.random()), tp, committed_only))
        for tp in partitions
    ]
    await asyncio.wait(readers, timeout=FINAL_READS_TIMEOUT_S)
    late = [not reader.done() and reader.cancel() for reader in readers]
    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return [tp for tp, is_late in zip(partitions, late, strict=True) if is_late]


async def _read_to_the_end(context: WorkloadContext, random: Random, tp: TopicPartition, committed_only: bool) -> None:
    name = f"final-{tp[0]}-{tp[1]}"
    cluster = context.cluster(name, random, patient=True)
    consumer = Consumer(cluster, context.history, name, random, ConsumerConfig(committed_only=committed_only))
    try:

        async def bounds() -> tuple[int, int]:
            start, _ = await list_offset(cluster, tp, EARLIEST)
            end, _ = await list_offset(cluster, tp, LATEST, committed_only=committed_only)
            return start, end

        start, end = await cluster.retry(bounds)
        consumer.assign({tp: start})
        while consumer.positions[tp].offset < end:
            await _poll(context, consumer, name)
    finally:
        consumer.close()
