"""An admin client. It retries until a deadline.

If an attempt's response was lost, the error of a repeated request (such as TOPIC_ALREADY_EXISTS) counts as success.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kbroker.simulation.checker.history import DeleteRecords, History, Outcome, TopicPartition
from kbroker.simulation.clients.cluster import Cluster, RefusedError
from kbroker.simulation.clients.connection import ConnectionLostError
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.k64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.k10000_reassignment_plans import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
    PlannedMove,
)
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
BROKER_TIMEOUT_MS = 5_000
# With these errors no records were deleted. A leader that is replaced while it waits for its followers may have.
DELETION_REFUSED = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class TopicDescription(NamedTuple):
    """A topic according to Metadata."""

    topic_id: bytes
    partitions: int


class Admin:
    """`timeout_s`: how long each operation is retried. All operations raise RefusedError, TimeoutError."""

    def __init__(self, cluster: Cluster, history: History, process: str, timeout_s: float = 30.0) -> None:
        self.cluster = cluster
        self._history = history
        self._process = process
        self._timeout_s = timeout_s

    def close(self) -> None:
        self.cluster.close()

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int = 1,
    ) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        await self._request(
            CreateTopicsRequest(topics=[topic], timeout_ms=BROKER_TIMEOUT_MS),
            CreateTopicsResponse,
            lambda response: response.topics[0].error_code,
            error_if_repeated=ErrorCode.TOPIC_ALREADY_EXISTS,
        )
        self._note(f"topic {name} with {partitions} partitions created")

    async def delete_topic(self, topic_id: bytes) -> None:
        await self._request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=BROKER_TIMEOUT_MS),
            DeleteTopicsResponse,
            lambda response: response.responses[0].error_code,
            error_if_repeated=ErrorCode.UNKNOWN_TOPIC_ID,
        )
        self._note(f"topic id {topic_id.hex()} deleted")

    async def create_partitions(self, name: str, count: int) -> None:
        """Increase the number of partitions to `count`."""
        topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
        await self._request(
            CreatePartitionsRequest(topics=[topic], timeout_ms=BROKER_TIMEOUT_MS),
            CreatePartitionsResponse,
            lambda response: response.results[0].error_code,
            error_if_repeated=ErrorCode.INVALID_PARTITIONS,
        )
        self._note(f"topic {name} has {count} partitions now")

    async def alter_configs(
        self, name: str, configs: Mapping[str, str | None], *, kind: int = TOPIC, node: int | None = None
    ) -> None:
        """Set configs; None resets a config to its default. `node`: the broker that gets the request, None for any."""
        changes = [
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in configs.items()
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
        await self._request(
            IncrementalAlterConfigsRequest(resources=[resource]),
            IncrementalAlterConfigsResponse,
            lambda response: response.responses[0].error_code,
            node=node,
        )
        self._note(f"configs of {name}: {dict(configs)}")

    async def elect_preferred_leaders(self) -> None:
        """Elect the preferred leaders of all partitions where they can lead."""
        request = ElectLeadersRequest(topic_partitions=None, timeout_ms=BROKER_TIMEOUT_MS)
        response = await self._request(request, ElectLeadersResponse, _error_code)
        self._note(f"elections: {len(response.replica_election_results)} topics")

    async def reassign(self, name: str, index: int, target: Sequence[int] | None) -> None:
        """Begin to move a partition to other brokers; None cancels that."""
        partition = ReassignablePartition(partition_index=index, replicas=None if target is None else list(target))
        topic = ReassignableTopic(name=name, partitions=[partition])
        await self._request(
            AlterPartitionReassignmentsRequest(timeout_ms=BROKER_TIMEOUT_MS, topics=[topic]),
            AlterPartitionReassignmentsResponse,
            lambda response: response.responses[0].partitions[0].error_code,
            error_if_repeated=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        )
        self._note(f"reassignment of {name}-{index}: {target}")

    async def replicas(self, topics: Sequence[str]) -> dict[TopicPartition, list[int]]:
        """Return the replicas of all partitions of topics. Raises OSError."""
        connection = await self.cluster.any_node()
        rows = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        response = await connection.request(request, MetadataResponse)
        return {
            (topic.name or "", partition.partition_index): partition.replica_nodes
            for topic in response.topics
            for partition in topic.partitions
        }

    async def create_plan(self, moves: Sequence[PlannedMove], max_concurrent_moves: int, throttle: int) -> None:
        """Let the controller run a plan of reassignments."""
        request = CreateReassignmentPlanRequest(
            description=self._process,
            throttle_bytes_per_second=throttle,
            max_concurrent_moves=max_concurrent_moves,
            moves=list(moves),
            allow_fewer_racks=True,  # the planner has checked what was wanted
        )
        repeated = ErrorCode.REASSIGNMENT_IN_PROGRESS
        await self._request(request, CreateReassignmentPlanResponse, _error_code, error_if_repeated=repeated, version=0)
        self._note(f"plan with {len(moves)} moves created")

    async def cancel_plan(self) -> None:
        """Cancel the plan that runs, if there is one. Raises OSError, too."""
        connection = await self.cluster.any_node()
        described = await connection.request(
            DescribeReassignmentPlanRequest(), DescribeReassignmentPlanResponse, version=0
        )
        if described.plan is None or described.plan.ended_ms >= 0:
            return
        request = CancelReassignmentPlanRequest(plan_id=described.plan.plan_id)
        repeated = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        await self._request(request, CancelReassignmentPlanResponse, _error_code, error_if_repeated=repeated, version=0)
        self._note(f"plan {request.plan_id} is cancelled")

    async def unregister_broker(self, broker: int) -> None:
        """Remove the registration of a broker."""
        request, repeated = UnregisterBrokerRequest(broker_id=broker), ErrorCode.BROKER_ID_NOT_REGISTERED
        await self._request(request, UnregisterBrokerResponse, _error_code, error_if_repeated=repeated)
        self._note(f"broker {broker} unregistered")

    async def delete_records(self, tp: TopicPartition, before: int) -> int:
        """Make one attempt to delete records below an offset. Returns the log start offset, -1 if unknown."""
        operation = self._history.begin(self._process, DeleteRecords(tp, before))
        partition = DeleteRecordsPartition(partition_index=tp[1], offset=before)
        topics = [DeleteRecordsTopic(name=tp[0], partitions=[partition])]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=BROKER_TIMEOUT_MS)
        outcome, detail, sent, low = Outcome.UNKNOWN, "", False, -1
        try:
            connection = await self.cluster.leader(tp)
            sent = True
            response = (await connection.request(request, DeleteRecordsResponse)).topics[0].partitions[0]
            code = ErrorCode(response.error_code)
            low, detail = response.low_watermark, code.name
            outcome = Outcome.FAILED if code in DELETION_REFUSED else Outcome.UNKNOWN if code else Outcome.OK
        except OSError as error:
            detail = type(error).__name__
            outcome = Outcome.UNKNOWN if sent else Outcome.FAILED
        finally:
            self._history.end(operation, outcome, "" if outcome is Outcome.OK else detail)
        return low

    async def describe(self, name: str) -> TopicDescription | None:
        """Return a topic's description, None if it does not exist. Raises OSError."""
        self.cluster.partition_counts.pop(name, None)
        self.cluster.topic_ids.pop(name, None)
        await self.cluster.refresh_metadata([name])
        if name not in self.cluster.partition_counts:
            return None
        return TopicDescription(self.cluster.topic_ids.get(name, b""), self.cluster.partition_counts[name])

    def _note(self, text: str) -> None:
        self._history.note(self._process, text)

    async def _request(
        self,
        request: Message,
        response_class: type[M],
        code_of: Callable[[M], int],
        *,
        error_if_repeated: ErrorCode = ErrorCode.NONE,
        node: int | None = None,
        version: int | None = None,
    ) -> M:
        """Repeat a request until it is done, and return the response. `code_of` returns the error of a response.

        `error_if_repeated`: the error of a repeated request whose first attempt succeeded. `node`: the broker that gets
        the request, None for any.
        """
        maybe_applied = False
        async with asyncio.timeout(self._timeout_s):
            while True:
                try:
                    connection = await (self.cluster.any_node() if node is None else self.cluster.node(node))
                    response = await connection.request(request, response_class, version=version)
                except ConnectionLostError:
                    maybe_applied = True
                except OSError:
                    pass
                else:
                    code = ErrorCode(code_of(response))
                    if not code or (maybe_applied and code is error_if_repeated):
                        return response
                    if not code.retriable or code is error_if_repeated:
                        raise RefusedError(code)
                    maybe_applied = True
                await self.cluster.backoff()


def _error_code(response: Any) -> int:
    code: int = response.error_code
    return code
