"""Large requests are handled in slices: of a number of elements, or of a time."""

import asyncio
from collections.abc import Awaitable

import pytest

from kbroker.runtime.slices import (
    RELEASED_PER_STEP,
    SLICE_ELEMENTS,
    SLICE_NS,
    Slices,
    Steps,
    at_once_or_in_slices,
    drained,
    each,
    in_slices,
    release,
    run_to_end,
)


class Clock:
    """`slices` is the number of slices that have ended. Each element takes `element_ns`."""

    def __init__(self, element_ns: int = 0) -> None:
        self.now_ns = 0
        self.slices = 0
        self._element_ns = element_ns

    async def next_slice(self) -> None:
        self.slices += 1
        self.now_ns += 10 * SLICE_NS

    def handle(self, element: int) -> str:
        self.now_ns += self._element_ns
        return str(element)

    def new_slices(self) -> Slices:
        return Slices(self.next_slice, lambda: self.now_ns)


@pytest.mark.parametrize(
    ("count", "element_ns", "slices"),
    [
        (0, 0, 0),
        (SLICE_ELEMENTS - 1, 0, 0),
        (SLICE_ELEMENTS, 0, 1),
        (10 * SLICE_ELEMENTS, 0, 10),
        (12, SLICE_NS, 12),
        (12, SLICE_NS // 3 + 1, 4),
    ],
)
def test_a_slice_ends_after_a_number_of_elements_or_a_time(count: int, element_ns: int, slices: int) -> None:
    clock = Clock(element_ns)
    results = asyncio.run(in_slices(clock.new_slices(), each(clock.handle, range(count))))
    assert results == list(map(str, range(count)))
    assert clock.slices == slices


def test_work_that_waits_has_the_same_slices() -> None:
    clock = Clock()

    async def work() -> None:
        slices = clock.new_slices()
        for _ in range(3 * SLICE_ELEMENTS + 5):
            await slices.step()

    asyncio.run(work())
    assert clock.slices == 3


def test_a_small_request_is_handled_at_once() -> None:
    assert run_to_end(each(str, range(1000))) == at_once_or_in_slices(None, each(str, range(1000)))
    assert asyncio.run(in_slices(None, each(str, [7]))) == ["7"]


def test_the_result_may_be_an_awaitable() -> None:
    async def waiting() -> str:
        return "waited"

    def steps() -> Steps[str | Awaitable[str]]:
        yield
        return waiting()

    async def respond(slices: Slices | None) -> str:
        response = at_once_or_in_slices(slices, steps())
        assert not isinstance(response, str)
        return await response

    assert asyncio.run(respond(None)) == "waited"
    assert asyncio.run(respond(Clock().new_slices())) == "waited"


def test_lists_are_emptied_in_steps() -> None:
    elements = list(range(10 * RELEASED_PER_STEP))
    seen = []
    for element in drained(elements):
        seen.append(element)
        assert len(elements) + len(seen) == 10 * RELEASED_PER_STEP
    assert seen == list(range(10 * RELEASED_PER_STEP))
    assert len(list(release(seen))) == 10
    assert seen == []
