"""CreateReassignmentPlan: plans that are stored or refused, and the APIs that describe and cancel them."""

from typing import Any

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k10000_reassignment_plans import DescribedMove, PlannedMove
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import settle


async def two_brokers() -> Handlers:
    handlers = await start_handlers()
    await handlers.join(2)
    await settle()
    topic = NewTopic("t", assignments=[(0, [1]), (1, [1]), (2, [2])])
    (result,) = await handlers.member.controller.topics.create_topics([topic], False)
    assert result.error is None
    return handlers


async def create(handlers: Handlers, targets: dict[int, tuple[list[int], list[int]]], **fields: Any) -> Any:
    moves = [
        PlannedMove(topic_name="t", partition_index=index, original_replicas=original, target_replicas=target)
        for index, (original, target) in targets.items()
    ]
    values = {"description": "a plan", "max_concurrent_moves": 1, "moves": moves} | fields
    return await handlers.request(ApiKey.CREATE_REASSIGNMENT_PLAN, 0, **values)


async def describe(handlers: Handlers, include_moves: bool = True) -> Any:
    response = await handlers.request(ApiKey.DESCRIBE_REASSIGNMENT_PLAN, 0, include_moves=include_moves)
    assert (response.throttle_time_ms, response.error_code, response.error_message) == (0, 0, None)
    return response.plan


async def cancel(handlers: Handlers, plan_id: int) -> Any:
    return await handlers.request(ApiKey.CANCEL_REASSIGNMENT_PLAN, 0, plan_id=plan_id)


@async_test
async def test_a_plan_is_created_described_and_cancelled():
    handlers = await two_brokers()
    assert await describe(handlers) is None
    response = await create(handlers, {0: ([1], [2]), 1: ([1], [2])}, throttle_bytes_per_second=5000)
    assert (response.error_code, response.error_message, response.plan_id) == (0, None, 1)
    await settle()
    plan = await describe(handlers)
    assert (plan.plan_id, plan.description, plan.state) == (1, "a plan", "running")
    assert (plan.throttle_bytes_per_second, plan.max_concurrent_moves, plan.ended_ms) == (5000, 1, -1)
    assert plan.created_ms == handlers.services.environment.clock.now_ms()
    assert (plan.moves_done, plan.moves_running, plan.moves_pending, plan.moves_skipped) == (0, 1, 1, 0)
    assert plan.moves == [
        DescribedMove(topic_name="t", partition_index=index, original_replicas=[1], target_replicas=[2], state=state)
        for index, state in ((0, "running"), (1, "pending"))
    ]
    assert (await describe(handlers, False)).moves == []
    refused = await create(handlers, {2: ([2], [1])})
    assert (refused.error_code, refused.plan_id) == (ErrorCode.REASSIGNMENT_IN_PROGRESS, -1)
    response = await cancel(handlers, 1)
    assert (response.error_code, response.error_message) == (0, None)
    assert (await describe(handlers)).state == "cancelling"
    response = await cancel(handlers, 2)
    assert response.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert response.error_message == "Plan 2 is not running."


@pytest.mark.parametrize(
    ("targets", "fields", "code"),
    [
        ({}, {}, ErrorCode.INVALID_REQUEST),
        ({0: ([1], [2])}, {"max_concurrent_moves": 0}, ErrorCode.INVALID_REQUEST),
        ({0: ([1], [2])}, {"throttle_bytes_per_second": 0}, ErrorCode.INVALID_REQUEST),
        ({0: ([1], [2]), 9: ([1], [2])}, {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({0: ([1], [2]), 1: ([2], [1])}, {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: ([1], [2]), 1: ([1], [9])}, {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        # The message would quote more than a response can have.
        ({0: ([1] * 50_000, [2])}, {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({}, {"moves": [PlannedMove(topic_name="t" * 32_767)]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
@async_test
async def test_a_plan_that_is_refused_changes_nothing(targets: Any, fields: Any, code: ErrorCode):
    handlers = await two_brokers()
    response = await create(handlers, targets, **fields)
    assert (response.error_code, response.plan_id) == (code, -1)
    assert response.error_message
    assert await describe(handlers) is None
    assert handlers.member.image.topics["t"].partitions[0].adding_replicas == []


@async_test
async def test_a_broker_that_is_not_the_controller_has_no_plans():
    handlers = await two_brokers()
    handlers.member.controller.resign()
    assert (await create(handlers, {0: ([1], [2])})).error_code == ErrorCode.NOT_CONTROLLER
    assert (await cancel(handlers, 1)).error_code == ErrorCode.NOT_CONTROLLER
    response = await handlers.request(ApiKey.DESCRIBE_REASSIGNMENT_PLAN, 0)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
