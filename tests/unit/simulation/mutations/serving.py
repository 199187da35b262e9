"""Mistakes in responses: acknowledgements, duplicates, fetches, their order; in the metadata of topics; in rights."""

from collections import deque
from itertools import count
from typing import Any

import pytest

from kbroker.api import k02_list_offsets
from kbroker.authorization.acl import PermissionType
from kbroker.authorization.authorizer import Authorizer
from kbroker.authorization.rule_set import RuleSet
from kbroker.common import KafkaError
from kbroker.coordination.journal import Journal
from kbroker.interbroker.controller_channel import BROKER_PRINCIPAL, ControllerChannel
from kbroker.metadata.replication import broker_changes
from kbroker.quotas.client_quotas import ClientQuotaManager
from kbroker.replica.fetch import fetch_manager, fetch_reads
from kbroker.replica.fetch.fetch_manager import FetchManager
from kbroker.replica.history.history_cache import HistoryCache, HistoryRange
from kbroker.replica.history.history_manager import HistoryManager
from kbroker.replica.partition import Partition
from kbroker.runtime.delayed_response import Purgatory
from kbroker.server.connection import Connection
from kbroker.server.large_request import serve_frame
from kbroker.server.response_queue import ResponseQueue
from kbroker.server.socket_server import SocketServer
from kbroker.simulation.clients.workloads.security import USERS
from kbroker.simulation.scenarios.cluster_faults import controller, isolate
from kbroker.simulation.scenarios.faults import kill
from kbroker.storage.log.log import Log
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.errors import ErrorCode
from protocol.records.batch import parse_header
from tests.unit.simulation.mutations.mutation import INVARIANT, Without, ignore_errors, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import blink, only, short, with_values

# Only the end of the run matters.
alone = short(0.1, producers=1, readers=1, members=0)


# Acknowledgements.


@mutation("calm", ["lost write", "inconsistent offsets", "LivenessError"], short())
def acknowledged_and_never_written(patch: pytest.MonkeyPatch) -> None:
    """Each 30th batch is acknowledged and never written."""
    numbers = count(1)

    def append(real: Any, log: Log, *batch: Any, **named: Any) -> Any:
        return real(log, *batch, **named) if next(numbers) % 30 else log.log_end_offset

    wrap(patch, Log, "append", append)


@mutation("disk", ["lost write", "unreadable at the end", "inconsistent offsets"], only("full", members=0, producers=3))
@replaces(Partition, "append_as_leader")
def acknowledged_although_the_append_failed(real: Any, partition: Partition, records: Any, *arguments: Any) -> Any:
    """A batch is acknowledged although its append failed."""
    try:
        return real(partition, records, *arguments)
    except KafkaError as error:
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        base_offset = partition.log.log_end_offset
        return base_offset, base_offset + parse_header(records).last_offset_delta + 1, -1


@mutation("durable", [INVARIANT, "unflushed acknowledgement"])
@replaces(Partition, "advance_high_watermark")
def unsynced_is_committed(real: Any, partition: Partition) -> None:
    """Under flush.before.ack, unsynced records are acknowledged."""
    partition.flush_before_ack, flush_before_ack = False, partition.flush_before_ack
    real(partition)
    partition.flush_before_ack = flush_before_ack


@mutation(
    "everything-durable",
    [INVARIANT, "stale poll"],
    only("slow_disk", "reset", producers=3, members=0, coordination=False),
)
@replaces(Partition, "append_as_leader")
def retry_does_not_wait_for_the_sync(real: Any, partition: Partition, *arguments: Any) -> tuple[int, int, int]:
    """A retry of a batch that waits for its sync is acknowledged at once."""
    log_end_offset = partition.log.log_end_offset
    base_offset, end_offset, append_time_ms = real(partition, *arguments)
    return base_offset, 0 if end_offset <= log_end_offset else end_offset, append_time_ms


# Sequences.


@mutation("network", [INVARIANT], only("reset", "cut", concurrent_faults=2, producers=3, members=0), first_seed=2)
@replaces(ProducerStateManager, "check")
def duplicates_are_appended(real: Any, states: Any, *batch: Any) -> Any:
    """A repeated batch is appended again."""
    return real(states, *batch) and None


@mutation(
    "network", ["inconsistent offsets"], only("reset", "cut", concurrent_faults=2, producers=3, members=0), first_seed=2
)
@replaces(ProducerStateManager, "check")
def duplicates_get_a_wrong_offset(real: Any, states: ProducerStateManager, *batch: Any) -> Any:
    """A repeated batch is acknowledged with a wrong offset."""
    duplicate = real(states, *batch)
    return duplicate and (duplicate[0] + 1, *duplicate[1:])


@mutation("power", [INVARIANT], only(blink, producers=3, members=0), first_seed=2)
def sequence_gaps_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """A batch with a sequence gap is accepted."""
    ignore_errors(patch, ProducerStateManager, "check", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


# Fetches.


@mutation("calm", ["stale poll"])
def session_loses_idle_partitions(patch: pytest.MonkeyPatch) -> None:
    """A partition that had nothing is forgotten by its session."""

    def wait_for_change(session: Any, fetched: Any, partition: Partition) -> None:
        if fetched.offset >= partition.high_watermark:
            session.ready.pop(fetched, None)

    patch.setattr(fetch_reads, "wait_for_change", wait_for_change)
    patch.setattr(fetch_manager, "wait_for_change", wait_for_change)


@mutation("calm", ["LateResponse"], alone)
@replaces(FetchManager, "_end_waiter")
def first_fetch_of_a_session_waits_on(_: Any, manager: Any, session: Any) -> None:
    """A second fetch in a session leaves the first waiting."""


@mutation("calm", ["LateResponse"], alone)
@replaces(Purgatory, "_expire")
def next_deadline_has_no_timer(_: Any, purgatory: Purgatory) -> None:
    """After a deadline the timer for the next one is not set."""
    purgatory._timer = None
    now_ms = purgatory._mono_ms()
    while (operation := purgatory.pop_due(now_ms)) is not None:
        operation.expire()


# Responses.


@mutation("durable", ["UnhandledError"], first_seed=2)
@replaces(ResponseQueue, "_gather_complete")
def responses_are_out_of_order(real: Any, queue: ResponseQueue) -> None:
    """A response is sent before the responses to earlier requests."""
    queue._contexts = deque(sorted(queue._contexts, key=lambda context: context.body is None))
    real(queue)


# Requests in turns.


@mutation("calm", ["lost write", "skipped records"], short(small_turns=True, producers=8), first_seed=17, slow=True)
@replaces(Connection, "_serve_large_request")
def frame_of_turns_is_overwritten(_: Any, connection: Connection, context: Any, frame: memoryview, pos: int) -> None:
    """A request is decoded in turns from the buffer that receives the next one."""
    server = connection._server
    connection._responses.wait_for_body(context, server.turns.call(serve_frame, server, context, frame, pos))


# Metadata.


@mutation("power", [INVARIANT, "ForeignDirectory", "NotServing", "lost write"], only("power"))
@replaces(Journal, "append")
def metadata_is_not_synced(real: Any, journal: Any, ops: Any) -> None:
    """The metadata journal is not synced."""
    if not isinstance(journal._file, Without):
        journal._file = Without(journal._file, "fdatasync")
    real(journal, ops)


@mutation("power", [INVARIANT])
@replaces(broker_changes, "change_partition")
def leader_epoch_stays(real: Any, *arguments: Any, **named: Any) -> Any:
    """A broker that starts leads on in its old leader epoch."""
    return real(*arguments, **{**named, "restarted": ()})


# Rights, logins and quotas.

SECURITY = "cluster-security"
FORBIDDEN, REFUSED, REVOKED, QUOTA = ["forbidden request"], ["refused request"], ["revoked login"], ["wrong quota"]
# Few clients without logins.
CALM = only(members=0, seconds=6.0)
FAULTS = with_values(only(kill, controller, isolate, pause_s=1.0, seconds=6.0), members=0)


@mutation(SECURITY, FORBIDDEN, CALM, first_seed=2)
@replaces(Authorizer, "use")
def known_rights_stay(real: Any, authorizer: Authorizer, rules: RuleSet) -> None:
    """The topics that a client was allowed to use stay allowed after the rules have changed."""
    accesses = dict(authorizer._accesses)
    known = {key: (set(access.readable_topics), set(access.writable_topics)) for key, access in accesses.items()}
    real(authorizer, rules)
    for (principal, host), (readable, writable) in known.items():
        access = authorizer.access(principal, host)
        access.readable_topics |= readable
        access.writable_topics |= writable


@mutation(SECURITY, [*FORBIDDEN, *REFUSED], FAULTS, slow=True)
@replaces(Authorizer, "use")
def later_rules_are_not_used(_: Any, authorizer: Authorizer, rules: RuleSet) -> None:
    """A broker decides by the rules of its start."""


@mutation(SECURITY, FORBIDDEN, CALM, first_seed=1)
@replaces(ControllerChannel, "forward")
def requests_are_forwarded_as_the_broker(
    real: Any, channel: Any, request: Any, version: int, client_id: Any, principal: Any, *rest: Any
) -> Any:
    """A forwarded request has the principal of the broker that forwards it."""
    return real(channel, request, version, client_id, BROKER_PRINCIPAL, *rest)


@mutation(SECURITY, FORBIDDEN, CALM, first_seed=3)
@replaces(RuleSet, "_change")
def denials_are_overlooked(real: Any, rules: RuleSet, removed: Any, added: Any) -> None:
    """A DENY denies nothing."""
    real(rules, removed, frozenset(acl for acl in added if acl.permission is PermissionType.ALLOW))


@mutation(SECURITY, QUOTA, CALM)
@replaces(ClientQuotaManager, "buckets_of")
def quotas_are_those_of_another_user(real: Any, quotas: Any, user: str, *rest: Any) -> Any:
    """The bytes of a user count for the quota of another one."""
    return real(quotas, USERS[USERS.index(user) - 1] if user in USERS else user, *rest)


@mutation(SECURITY, REVOKED, CALM, first_seed=1, slow=True)
@replaces(SocketServer, "close_revoked")
def connections_of_former_passwords_stay(_: Any, server: Any) -> None:
    """A changed or deleted password ends no connection."""


# History from archives.

READS = only(producers=2, readers=2, members=0, deleters=0)


@mutation("history", ["lost write", "skipped records"], READS)
@replaces(HistoryRange, "has_records_from")
def records_at_the_border_are_skipped(real: Any, found: Any, offset: int) -> bool:
    """What is left of the archive before the log is skipped if it is one batch."""
    return bool(real(found, offset)) and len(found.batches) > 1


@mutation("history", ["lost write", "skipped records"], READS)
@replaces(HistoryManager, "known_bounds")
def retention_does_not_wait(real: Any, history: Any, partition: Any) -> tuple[int, int]:
    """Retention deletes what is not archived yet."""
    return 0, partition.high_watermark


@mutation("history", ["lost write"], READS)
@replaces(k02_list_offsets, "_look_up_in_archive")
async def the_archive_is_not_looked_up(real: Any, *arguments: Any) -> None:
    """The earliest offset is that of the log."""


@mutation("history", ["inconsistent offsets", "unsent value"], READS)
@replaces(HistoryCache, "find")
def ranges_of_partitions_are_mixed_up(real: Any, cache: Any, key: Any, *arguments: Any) -> Any:
    """A fetch gets the records of another partition."""
    for other in list(cache._starts):
        found = real(cache, other, *arguments)
        if found is not None:
            return found
    return None
