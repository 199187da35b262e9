"""Users with passwords, rights and quotas, which an administrator changes all the time.

The users send what needs rights over connections of the listener with SASL, some with a former password or one that was
never valid; the administrator, and all other clients of a run, use the listener without. The history has every change
and what came of every request, for the checker (checker/permissions.py). Any response but the authorization error means
that the broker allowed the request: it checks the rights first.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

from kbroker.authorization.acl import CLUSTER_NAME, Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.simulation.checker.history import GuardedRequest, Outcome, SecurityChange, SettingKey
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
    DescribeAclsRequest,
    DescribeAclsResponse,
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
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from protocol.records.batch import build_batch, parse_header
from protocol.schema.message import Message
from protocol.scram import MIN_ITERATIONS, ClientExchange, ScramMechanism, salted_password

USERS = ("alice", "bob", "carol")
TOPICS, PARTITIONS, GROUP, TRANSACTIONAL_ID = ("secured-a", "secured-b"), 3, "secured-group", "secured-id"
MECHANISM = ScramMechanism.SCRAM_SHA_256
PAYLOAD_BYTES = 1_500
QUOTAS = (0, 0, 0, 4_000, 20_000)
CHANGE_PAUSES_S, REQUEST_PAUSES_S = (0.05, 0.3, 1.5), (0.0, 0.02, 0.1)
# A password that no user ever has.
WRONG_PASSWORD = -1
# The last versions that name topics.
PRODUCE_VERSION, FETCH_VERSION, COMMIT_VERSION = 12, 12, 9
# With these errors a forwarded request has no decision of a controller.
UNDECIDED = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
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


class _Attempt(NamedTuple):
    """A request that needs rights. `codes` returns the errors of a response; `refused`: the one for lack of rights."""

    action: GuardedRequest
    request: Message
    response_class: type[Message]
    version: int | None
    refused: ErrorCode
    codes: Callable[[Any], Iterable[int]]


class SecuredUsers:
    """The users and their administrator, who share `context`."""

    def __init__(self, context: WorkloadContext, random: Random) -> None:
        self.context = context
        self._random = random
        # What the administrator has set last, and the number of the last password.
        self._values: dict[SettingKey, int] = {}
        self._last_password = 0
        # Where the next record of a partition of the users is expected.
        self._positions: dict[tuple[str, int], int] = {}

    async def create(self, admin: Admin, replication_factor: int) -> None:
        """Create the topics, and users with some rights."""
        for topic in TOPICS:
            await admin.create_topic(topic, PARTITIONS, replication_factor=replication_factor)
        for user in USERS:
            await self._change(admin.cluster, ("password", user), self._next_password())
            for _ in range(4):
                await self._change(admin.cluster, self._draw_acl(user)._replace(permission=PermissionType.ALLOW), 1)

    # The administrator.

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
                code = _change_error(response)
                if not code or (code is ErrorCode.RESOURCE_NOT_FOUND and action.attempts_lost):
                    break
                assert code in UNDECIDED, code
                action.attempts_lost = True
            await cluster.backoff()
        self.context.history.end(operation, Outcome.OK)

    # The users.

    async def use(self, context: WorkloadContext, name: str, random: Random, user: str) -> None:
        """Log in and send requests, again and again, until stopped."""
        for number in range(1 << 62):
            if context.stop.requested:
                return
            broker = random.randrange(len(context.bootstrap))
            host, port = context.bootstrap[broker]
            password = self._values["password", user]
            if not password or random.random() < 0.1:
                password = random.choice((WRONG_PASSWORD, max(self._last_password - 1, 1)))
            try:
                connection = await connect(context.loop, (host, port + 1), name, {}, TIMEOUT_S)
            except OSError:
                await asyncio.sleep(random.uniform(0.02, 0.2))
                continue
            session = _Session(context, connection, f"{name}.{number}", random)
            try:
                if await session.log_in(GuardedRequest("login", user, password, broker + 1)):
                    await self._send_requests(session, user, password, broker + 1)
                else:
                    await asyncio.sleep(random.uniform(0.02, 0.2))
            except OSError:
                pass
            finally:
                connection.close()

    async def _send_requests(self, session: "_Session", user: str, password: int, broker: int) -> None:
        random = session.random
        for _ in range(random.choice((3, 30, 300))):
            if session.context.stop.requested:
                return
            draw = random.choice((self._produce, self._produce, self._fetch, _commit, _create, _describe, _init))
            attempt = draw(session, user, password, broker)
            response = await session.request(attempt)
            if isinstance(response, ProduceResponse):
                for row in response.responses[0].partition_responses:
                    if not row.error_code:
                        self._positions[response.responses[0].name, row.index] = row.base_offset + 1
            await asyncio.sleep(random.choice(REQUEST_PAUSES_S))

    def _produce(self, session: "_Session", user: str, password: int, broker: int) -> _Attempt:
        topic, at_ms = session.random.choice(TOPICS), EPOCH_MS + int(session.context.loop.time() * 1000)
        batch = build_batch([(at_ms, None, bytes(PAYLOAD_BYTES), ())])
        rows = [PartitionProduceData(index=index, records=bytearray(batch)) for index in range(PARTITIONS)]
        action = _guarded("produce", user, password, broker, Operation.WRITE, ResourceType.TOPIC, topic)
        action.produced_bytes = PARTITIONS * len(batch)
        request = ProduceRequest(
            acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=rows)]
        )
        return _Attempt(
            action, request, ProduceResponse, PRODUCE_VERSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _produce_codes
        )

    def _fetch(self, session: "_Session", user: str, password: int, broker: int) -> _Attempt:
        topic, random = session.random.choice(TOPICS), session.random
        rows = [
            FetchPartition(
                partition=index, fetch_offset=self._positions.get((topic, index), 0), partition_max_bytes=8192
            )
            for index in range(PARTITIONS)
        ]
        request = FetchRequest(
            max_wait_ms=random.choice((0, 500, 3000)), min_bytes=1, topics=[FetchTopic(topic=topic, partitions=rows)]
        )
        action = _guarded("fetch", user, password, broker, Operation.READ, ResourceType.TOPIC, topic)
        return _Attempt(
            action, request, FetchResponse, FETCH_VERSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _fetch_codes
        )


def _guarded(
    name: str, user: str, password: int, broker: int, operation: Operation, resource_type: ResourceType, resource: str
) -> GuardedRequest:
    return GuardedRequest(f"{name} {resource}", user, password, broker, ((operation, resource_type, resource),))


def _commit(session: "_Session", user: str, password: int, broker: int) -> _Attempt:
    action = _guarded("commit", user, password, broker, Operation.READ, ResourceType.GROUP, GROUP)
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(group_id=GROUP, topics=[OffsetCommitRequestTopic(name=TOPICS[0], partitions=[row])])
    return _Attempt(
        action, request, OffsetCommitResponse, COMMIT_VERSION, ErrorCode.GROUP_AUTHORIZATION_FAILED, _commit_codes
    )


def _create(session: "_Session", user: str, password: int, broker: int) -> _Attempt:
    """Let the controller check a new topic, which needs the right to create any topic, or this one."""
    name = "secured-new"
    action = _guarded("create", user, password, 0, Operation.CREATE, ResourceType.TOPIC, name)
    action.rights += ((Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),)
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=2000, validate_only=True)
    return _Attempt(action, request, CreateTopicsResponse, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED, _create_codes)


def _describe(session: "_Session", user: str, password: int, broker: int) -> _Attempt:
    action = _guarded("acls of", user, password, broker, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    request = DescribeAclsRequest(
        resource_type_filter=ResourceType.USER, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
        principal_filter=None, host_filter=None, operation=Operation.ANY, permission_type=PermissionType.ANY,
    )  # fmt: skip
    return _Attempt(action, request, DescribeAclsResponse, None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _top_code)


def _init(session: "_Session", user: str, password: int, broker: int) -> _Attempt:
    resource_type = ResourceType.TRANSACTIONAL_ID
    action = _guarded("init", user, password, broker, Operation.WRITE, resource_type, TRANSACTIONAL_ID)
    request = InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=10_000)
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return _Attempt(action, request, InitProducerIdResponse, None, refused, _top_code)


def _produce_codes(response: ProduceResponse) -> list[int]:
    return [row.error_code for row in response.responses[0].partition_responses]


def _fetch_codes(response: FetchResponse) -> list[int]:
    return [row.error_code for topic in response.responses for row in topic.partitions]


def _commit_codes(response: OffsetCommitResponse) -> list[int]:
    return [row.error_code for topic in response.topics for row in topic.partitions]


def _create_codes(response: CreateTopicsResponse) -> list[int]:
    return [row.error_code for row in response.topics]


def _top_code(response: Any) -> list[int]:
    return [response.error_code]


class _Session:
    """A connection of a user, with the name of its process in the history."""

    def __init__(self, context: WorkloadContext, connection: SimClientConnection, process: str, random: Random) -> None:
        self.context = context
        self.random = random
        self._connection = connection
        self._process = process

    async def log_in(self, action: GuardedRequest) -> bool:
        """Return whether the broker has accepted the password. Raises OSError."""
        operation, outcome = self.context.history.begin(self._process, action), Outcome.UNKNOWN
        password, nonce = f"{action.user} {action.password}", self.random.randbytes(12).hex()
        exchange = ClientExchange(MECHANISM, action.user, password, nonce)
        try:
            handshake = SaslHandshakeRequest(mechanism=MECHANISM.sasl_name)
            await self._connection.request(handshake, SaslHandshakeResponse)
            first = await self._authenticate(exchange.first)
            final = first if first.error_code else await self._authenticate(exchange.final(bytes(first.auth_bytes)))
            outcome = Outcome.FAILED if final.error_code else Outcome.OK
        finally:
            self.context.history.end(operation, outcome)
        return outcome is Outcome.OK

    async def _authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        return await self._connection.request(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)

    async def request(self, attempt: _Attempt) -> Message:
        """Send a request, and record what came of it. Raises OSError."""
        action, outcome, detail = attempt.action, Outcome.UNKNOWN, ""
        operation = self.context.history.begin(self._process, action)
        try:
            response: Any = await self._connection.request(
                attempt.request, attempt.response_class, version=attempt.version
            )
            codes = {ErrorCode(code) for code in attempt.codes(response)}
            detail = ", ".join(sorted(code.name for code in codes))
            action.throttle_ms = response.throttle_time_ms if action.produced_bytes else 0
            if isinstance(response, FetchResponse):
                action.newest_record_ns = max(_record_times_ns(response), default=0)
            if attempt.refused in codes:
                outcome = Outcome.FAILED
            elif action.broker or codes.isdisjoint(UNDECIDED):
                outcome = Outcome.OK
        finally:
            self.context.history.end(operation, outcome, detail)
        return response


def _record_times_ns(response: FetchResponse) -> Iterator[int]:
    for topic in response.responses:
        for row in topic.partitions:
            if row.records:
                header = parse_header(memoryview(row.records))
                yield (header.base_timestamp - EPOCH_MS) * 1_000_000


# The requests of the administrator.


def _change_request(key: SettingKey, value: int, former: int, salt: bytes) -> tuple[Message | None, type[Any]]:
    """Return the request of a change, and the class of its response; None if there is nothing to change."""
    if isinstance(key, Acl):
        if value:
            row = AclCreation(
                resource_type=key.resource_type, resource_name=key.name, resource_pattern_type=key.pattern_type,
                principal=key.principal, host=key.host, operation=key.operation, permission_type=key.permission,
            )  # fmt: skip
            return CreateAclsRequest(creations=[row]), CreateAclsResponse
        filter = DeleteAclsFilter(
            resource_type_filter=key.resource_type, resource_name_filter=key.name,
            pattern_type_filter=key.pattern_type, principal_filter=key.principal, host_filter=key.host,
            operation=key.operation, permission_type=key.permission,
        )  # fmt: skip
        return DeleteAclsRequest(filters=[filter]), DeleteAclsResponse
    kind, user = key
    if kind == "quota":
        op = OpData(key="producer_byte_rate", value=float(value), remove=not value)
        entry = EntryData(entity=[EntityData(entity_type="user", entity_name=user)], ops=[op])
        return AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse
    request = AlterUserScramCredentialsRequest()
    if value:
        salted = salted_password(MECHANISM, f"{user} {value}", salt, MIN_ITERATIONS)
        request.upsertions = [
            ScramCredentialUpsertion(
                name=user, mechanism=MECHANISM, iterations=MIN_ITERATIONS, salt=salt, salted_password=salted
            )
        ]
    elif former:
        request.deletions = [ScramCredentialDeletion(name=user, mechanism=MECHANISM)]
    else:
        return None, AlterUserScramCredentialsResponse
    return request, AlterUserScramCredentialsResponse


def _change_error(response: Any) -> ErrorCode:
    if isinstance(response, DeleteAclsResponse):
        rows: list[Any] = response.filter_results
    elif isinstance(response, AlterClientQuotasResponse):
        rows = response.entries
    else:
        rows = response.results
    return ErrorCode(getattr(response, "error_code", 0) or rows[0].error_code)
