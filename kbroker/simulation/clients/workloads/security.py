"""Users with passwords, rights and quotas, which an administrator changes all the time.

The users send what needs rights over connections of the listener with SASL, some with a former password or one that was
never valid; the administrator, and all other clients of a run, use the listener without. The history has every change
and what came of every request, for the checker (checker/permissions.py). Any response but the authorization error means
that the broker allowed the request: it checks the rights first.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from kbroker.authorization.acl import CLUSTER_NAME, Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.simulation.checker.history import GuardedRequest, Outcome, Right, SecurityChange, SettingKey
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.connection import SimClientConnection, connect
from kbroker.simulation.clients.workloads.context import TIMEOUT_S, WorkloadContext
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k17_sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k29_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from protocol.messages.k48_describe_client_quotas import EntityData
from protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    OpData,
)
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from protocol.records.batch import build_batch, parse_header
from protocol.schema.message import Message, Struct
from protocol.scram import MIN_ITERATIONS, ClientExchange, ScramMechanism, salted_password

USERS = ("alice", "bob", "carol")
TOPICS, PARTITIONS, GROUP, TRANSACTIONAL_ID = ("secured-a", "secured-b"), 3, "secured-group", "secured-id"
MECHANISM = ScramMechanism.SCRAM_SHA_256
PAYLOAD_BYTES = 1_500
QUOTAS = (0, 0, 0, 4_000, 20_000)
CHANGE_PAUSES_S, REQUEST_PAUSES_S = (0.05, 0.3, 1.0), (0.0, 0.0, 0.05)
# A password that no user ever has.
WRONG_PASSWORD = -1
_NAMES = {
    ResourceType.TOPIC: (*TOPICS, "secured-"),
    ResourceType.GROUP: (GROUP, "secured-"),
    ResourceType.TRANSACTIONAL_ID: (TRANSACTIONAL_ID,),
    ResourceType.CLUSTER: (CLUSTER_NAME,),
}
_OPERATIONS = {
    ResourceType.TOPIC: (Operation.READ, Operation.WRITE, Operation.WRITE, Operation.CREATE, Operation.ALL),
    ResourceType.GROUP: (Operation.READ, Operation.ALL),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE,),
    ResourceType.CLUSTER: (Operation.CREATE, Operation.DESCRIBE),
}


class SecuredUsers:
    """The users and their administrator, who has `context`."""

    def __init__(self, context: WorkloadContext, random: Random) -> None:
        self.context = context
        # Where the next record of a partition of the users is expected.
        self.positions: dict[tuple[str, int], int] = {}
        self._random = random
        # What the administrator has set last, and the number of the last password.
        self._values: dict[SettingKey, int] = {}
        self._last_password = 0

    async def create(self, admin: Admin, replication_factor: int) -> None:
        """Create the topics, and users with some rights."""
        for topic in TOPICS:
            await admin.create_topic(topic, PARTITIONS, replication_factor=replication_factor)
        for user in USERS:
            await self._change(admin.cluster, ("password", user), self._next_password())
            for _ in range(4):
                await self._change(admin.cluster, self._draw_acl(user)._replace(permission=PermissionType.ALLOW), 1)

    async def administrate(self) -> None:
        cluster, random = self.context.cluster("security", self._random, patient=True), self._random
        while not self.context.stop.requested:
            await asyncio.sleep(random.choice(CHANGE_PAUSES_S))
            await self._change(cluster, *self._draw_change())
        cluster.close()

    def _draw_change(self) -> tuple[SettingKey, int]:
        random, user = self._random, self._random.choice(USERS)
        kind = random.random()
        if kind < 0.2 or (not self._values["password", user] and kind < 0.7):
            return ("password", user), self._next_password() if random.random() < 0.7 else 0
        if kind < 0.35:
            return ("quota", user), random.choice(QUOTAS)
        acls = [key for key, value in self._values.items() if isinstance(key, Acl) and value]
        if acls and random.random() < len(acls) / 20:
            return random.choice(acls), 0
        return self._draw_acl(user), 1

    def _next_password(self) -> int:
        self._last_password += 1
        return self._last_password

    def _draw_acl(self, user: str) -> Acl:
        random = self._random
        resource_type = random.choice((ResourceType.TOPIC, *_NAMES))
        name = random.choice(_NAMES[resource_type])
        pattern = PatternType.PREFIXED if name.endswith("-") else PatternType.LITERAL
        principal = f"User:{user}" if random.random() < 0.8 else "User:*"
        permission = PermissionType.ALLOW if random.random() < 0.7 else PermissionType.DENY
        operation = random.choice(_OPERATIONS[resource_type])
        return Acl(resource_type, pattern, name, principal, "*", operation, permission)

    async def _change(self, cluster: Cluster, key: SettingKey, value: int) -> None:
        """Repeat a change until it is done. If an attempt has no response, or fails, it may be carried out later."""
        action, salt = SecurityChange(key, value), self._random.randbytes(16)
        request, response_class = _change_request(key, value, self._values.get(key, 0), salt)
        self._values[key] = value
        operation = self.context.history.begin("security", action)
        while request is not None:
            try:
                connection = await cluster.any_node()
            except OSError:
                await cluster.backoff()
                continue
            try:
                response = await connection.request(request, response_class)
            except OSError:
                action.attempts_lost = True
            else:
                codes = {ErrorCode(code) for code in _error_codes(response)}
                if codes <= {ErrorCode.NONE} or (ErrorCode.RESOURCE_NOT_FOUND in codes and action.attempts_lost):
                    break
                assert not _is_decision(codes), codes
                action.attempts_lost = True
            await cluster.backoff()
        self.context.history.end(operation, Outcome.OK)

    async def use(self, context: WorkloadContext, name: str, random: Random, user: str) -> None:
        """Log in and send requests, again and again, until stopped."""
        number = 0
        while not context.stop.requested:
            broker, number = random.randrange(len(context.bootstrap)), number + 1
            host, port = context.bootstrap[broker]
            password = self._values["password", user]
            if not password or random.random() < 0.1:
                password = random.choice((WRONG_PASSWORD, max(self._last_password - 1, 1)))
            try:
                connection = await connect(context.loop, (host, port + 1), name, {}, TIMEOUT_S)
                session = _Session(context, random, connection, f"{name}.{number}", (user, password, broker + 1))
                try:
                    await session.log_in()
                    for _ in range(random.choice((3, 30, 300))):
                        await session.send_request(random.choice(_KINDS), self.positions)
                        await asyncio.sleep(random.choice(REQUEST_PAUSES_S))
                        if context.stop.requested:
                            break
                finally:
                    connection.close()
            except OSError:
                await asyncio.sleep(random.uniform(0.02, 0.2))


class _Session(NamedTuple):
    """A connection of a user, and the name of its process in the history. `login`: user, password and broker."""

    context: WorkloadContext
    random: Random
    connection: SimClientConnection
    process: str
    login: tuple[str, int, int]

    async def log_in(self) -> None:
        """Raises OSError, also if the broker refuses the password."""
        user, password, broker = self.login
        operation = self.context.history.begin(self.process, GuardedRequest("login", user, password, broker))
        exchange, outcome = ClientExchange(MECHANISM, user, f"{password}", f"{self.random.random()}"), Outcome.UNKNOWN
        try:
            await self.connection.request(SaslHandshakeRequest(mechanism=MECHANISM.sasl_name), SaslHandshakeResponse)
            response = await self._authenticate(exchange.first)
            if not response.error_code:
                response = await self._authenticate(exchange.final(bytes(response.auth_bytes)))
            outcome = Outcome.FAILED if response.error_code else Outcome.OK
        finally:
            self.context.history.end(operation, outcome)
        if outcome is Outcome.FAILED:
            raise PermissionError

    async def _authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        return await self.connection.request(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)

    async def send_request(self, kind: "_Kind", positions: dict[tuple[str, int], int]) -> None:
        """Send a request, and record what came of it. Raises OSError."""
        user, password, broker = self.login
        resource, outcome, detail = self.random.choice(kind.names), Outcome.UNKNOWN, ""
        rights: tuple[Right, ...] = ((kind.operation, kind.resource_type, resource),)
        if kind.operation is Operation.CREATE:
            # The controller decides. The right to create any topic suffices, too.
            rights, broker = (*rights, (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)), 0
        request, name = kind.request(self, resource, positions), f"{kind.response_class.__name__} {resource}"
        action = GuardedRequest(name, user, password, broker, rights)
        operation = self.context.history.begin(self.process, action)
        try:
            response: Any = await self.connection.request(request, kind.response_class, version=kind.version)
            codes = {ErrorCode(code) for code in _error_codes(response)}
            detail = ", ".join(sorted(code.name for code in codes))
            if isinstance(response, ProduceResponse):
                action.produced_bytes, action.throttle_ms = PARTITIONS * PAYLOAD_BYTES, response.throttle_time_ms
                for row in response.responses[0].partition_responses:
                    positions[resource, row.index] = max(positions.get((resource, row.index), 0), row.base_offset + 1)
            elif isinstance(response, FetchResponse):
                rows = [row for topic in response.responses for row in topic.partitions if row.records]
                times_ms = [parse_header(memoryview(row.records)).base_timestamp for row in rows]  # type: ignore[arg-type]
                action.newest_record_ns = (max(times_ms, default=EPOCH_MS) - EPOCH_MS) * 1_000_000
            if ErrorCode[f"{kind.resource_type.name}_AUTHORIZATION_FAILED"] in codes:
                outcome = Outcome.FAILED
            elif broker or _is_decision(codes):
                outcome = Outcome.OK
        finally:
            self.context.history.end(operation, outcome, detail)


def _error_codes(row: Struct) -> Iterator[int]:
    for name in type(row).__rows__:
        value = getattr(row, name)
        if name == "error_code":
            yield value
        elif isinstance(value, list):
            for each in value:
                yield from _error_codes(each) if isinstance(each, Struct) else ()


def _is_decision(codes: Iterable[ErrorCode]) -> bool:
    """Return whether a controller has handled a request that was forwarded to it, by the errors in its response."""
    return not any(code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR for code in codes)


class _Kind(NamedTuple):
    """A kind of requests that need a right on one of `names`. `request` makes one."""

    operation: Operation
    resource_type: ResourceType
    names: tuple[str, ...]
    request: Callable[[_Session, str, Mapping[tuple[str, int], int]], Message]
    response_class: type[Message]
    version: int | None = None


def _produce(session: _Session, topic: str, positions: object) -> ProduceRequest:
    at_ms = EPOCH_MS + int(session.context.loop.time() * 1000)
    batch = build_batch([(at_ms, None, bytes(PAYLOAD_BYTES), ())])
    rows = [PartitionProduceData(index=index, records=bytearray(batch)) for index in range(PARTITIONS)]
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=rows)])


def _fetch(session: _Session, topic: str, positions: Mapping[tuple[str, int], int]) -> FetchRequest:
    rows = [
        FetchPartition(partition=index, fetch_offset=positions.get((topic, index), 0), partition_max_bytes=8192)
        for index in range(PARTITIONS)
    ]
    wait_ms = session.random.choice((0, 500, 3000))
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=rows)])


def _commit(session: _Session, group: str, positions: object) -> OffsetCommitRequest:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name=TOPICS[0], partitions=[row])
    return OffsetCommitRequest(group_id=group, topics=[topic])


def _create(session: _Session, topic: str, positions: object) -> CreateTopicsRequest:
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[new], timeout_ms=2000, validate_only=True)


def _describe(session: _Session, cluster: str, positions: object) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest(users=[UserName(name="nobody")])


def _begin(session: _Session, transactional_id: str, positions: object) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000)


_T = ResourceType
# Produce and Fetch have the last versions that name topics.
_KINDS = (
    _Kind(Operation.WRITE, _T.TOPIC, TOPICS, _produce, ProduceResponse, 12),
    _Kind(Operation.WRITE, _T.TOPIC, TOPICS, _produce, ProduceResponse, 12),
    _Kind(Operation.READ, _T.TOPIC, TOPICS, _fetch, FetchResponse, 12),
    _Kind(Operation.READ, _T.GROUP, (GROUP,), _commit, OffsetCommitResponse, 9),
    _Kind(Operation.CREATE, _T.TOPIC, ("secured-new",), _create, CreateTopicsResponse),
    _Kind(Operation.DESCRIBE, _T.CLUSTER, (CLUSTER_NAME,), _describe, DescribeUserScramCredentialsResponse),
    _Kind(Operation.WRITE, _T.TRANSACTIONAL_ID, (TRANSACTIONAL_ID,), _begin, InitProducerIdResponse),
)


def _change_request(key: SettingKey, value: int, former: int, salt: bytes) -> tuple[Message | None, type[Any]]:
    """Return the request of a change, None if there is nothing to change, and the class of its response."""
    if isinstance(key, Acl):
        resource_type, pattern, name, principal, host, operation, permission = key
        if value:
            new = AclCreation(
                resource_type=resource_type, resource_pattern_type=pattern, resource_name=name, principal=principal,
                host=host, operation=operation, permission_type=permission,
            )  # fmt: skip
            return CreateAclsRequest(creations=[new]), CreateAclsResponse
        old = DeleteAclsFilter(
            resource_type_filter=resource_type, pattern_type_filter=pattern, resource_name_filter=name,
            principal_filter=principal, host_filter=host, operation=operation, permission_type=permission,
        )  # fmt: skip
        return DeleteAclsRequest(filters=[old]), DeleteAclsResponse
    kind, user = key
    if kind == "quota":
        op = OpData(key="producer_byte_rate", value=float(value), remove=not value)
        entry = EntryData(entity=[EntityData(entity_type="user", entity_name=user)], ops=[op])
        return AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse
    if not value:
        deletions = [ScramCredentialDeletion(name=user, mechanism=MECHANISM)]
        request = AlterUserScramCredentialsRequest(deletions=deletions) if former else None
        return request, AlterUserScramCredentialsResponse
    salted = salted_password(MECHANISM, f"{value}", salt, MIN_ITERATIONS)
    upsertion = ScramCredentialUpsertion(
        name=user, mechanism=MECHANISM, iterations=MIN_ITERATIONS, salt=salt, salted_password=salted
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion]), AlterUserScramCredentialsResponse
