"""A delayed response is completed once, and calls back or resumes the coroutine that awaits it."""

import asyncio

import pytest

from kbroker.runtime.delayed_response import DelayedResponse
from tests.unit.support.async_test import async_test


def test_calls_back_once() -> None:
    response: DelayedResponse[str] = DelayedResponse()
    received: list[str] = []
    response.on_complete(received.append)
    response.complete("first")
    response.complete("second")
    assert received == ["first"]


def test_calls_back_at_once_if_it_is_complete() -> None:
    response: DelayedResponse[str] = DelayedResponse()
    response.complete("response")
    received: list[str] = []
    response.on_complete(received.append)
    assert received == ["response"]


def test_does_not_call_back_after_it_was_abandoned() -> None:
    response: DelayedResponse[str] = DelayedResponse()
    received: list[str] = []
    response.on_complete(received.append)
    response.abandon()
    response.complete("response")
    assert received == []


@async_test
async def test_can_be_awaited() -> None:
    response: DelayedResponse[str] = DelayedResponse()
    asyncio.get_running_loop().call_soon(response.complete, "response")
    assert await response == "response"


@async_test
async def test_completing_after_the_awaiting_task_was_cancelled_has_no_effect() -> None:
    """When the broker stops, it cancels the coroutines that wait and then completes the requests."""
    response: DelayedResponse[str] = DelayedResponse()

    async def wait() -> str:
        return await response

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    response.complete("response")
    with pytest.raises(asyncio.CancelledError):
        await task
