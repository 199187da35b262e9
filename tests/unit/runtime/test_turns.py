"""Turns: a call pauses after a number of elements, or a time, wherever it is, and continues when others have run."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

import pytest

from kbroker.runtime.turns import (
    MAX_IDLE,
    RELEASED_AT_ONCE,
    TURN_ELEMENTS,
    TURN_NS,
    Turns,
    drained,
    is_in_turn,
    paced,
    release,
    turns_ns,
    wait_in_turn,
    yield_if_due,
)

T = TypeVar("T")
LONG = 10 * TURN_ELEMENTS


class Loop:
    """Turns whose pauses are counted. Each element takes `element_ns`."""

    def __init__(self, element_ns: int = 0) -> None:
        self.now_ns = 0
        self.pauses = 0
        self._element_ns = element_ns
        self.turns = Turns(self._next_turn, lambda: self.now_ns)

    async def _next_turn(self) -> None:
        self.pauses += 1
        self.now_ns += 10 * TURN_NS
        await asyncio.sleep(0)

    def handle(self, element: int) -> str:
        self.now_ns += self._element_ns
        return str(element)

    def handle_all(self, elements: Iterable[int]) -> list[str]:
        return [self.handle(element) for element in paced(elements)]


async def result_of(called: T | Awaitable[T]) -> T:
    return await called if isinstance(called, Awaitable) else called


def many(count: int = LONG) -> int:
    """Handle elements in a function that its caller does not know to pause."""
    for _ in range(count):
        yield_if_due()
    return count


@pytest.mark.parametrize(
    ("count", "element_ns", "pauses"),
    [
        (0, 0, 0),
        (TURN_ELEMENTS - 1, 0, 0),
        (TURN_ELEMENTS, 0, 1),
        (10 * TURN_ELEMENTS, 0, 10),
        (12, TURN_NS, 12),
        (12, TURN_NS // 3 + 1, 4),
    ],
)
def test_a_turn_ends_after_a_number_of_elements_or_a_time(count: int, element_ns: int, pauses: int) -> None:
    loop = Loop(element_ns)

    async def work() -> list[str]:
        return loop.handle_all(range(count))

    def call() -> Awaitable[list[str]]:
        return result_of(loop.turns.call(loop.handle_all, range(count)))

    for start in (call, lambda: loop.turns.run(work()), lambda: loop.turns.wait(loop.handle_all, range(count))):
        loop.pauses = 0
        assert asyncio.run(_awaited(start)) == list(map(str, range(count)))
        assert loop.pauses == pauses


async def _awaited(start: Callable[[], Awaitable[T]]) -> T:
    return await start()


def test_a_call_that_has_not_paused_returns_its_result() -> None:
    turns = Loop().turns
    assert turns.call(many, 3) == 3
    with pytest.raises(ZeroDivisionError):
        turns.call(divmod, 1, 0)
    later = turns.call(many)
    assert isinstance(later, Coroutine)
    assert asyncio.run(later) == LONG


def test_nothing_pauses_outside_of_a_turn() -> None:
    elements = list(range(LONG))
    assert not is_in_turn()
    assert paced(elements) is elements
    assert many() == LONG
    assert list(drained(elements)) == list(range(LONG))
    assert elements == []


def test_others_run_between_the_turns() -> None:
    """Each call has its own turns, also if two pause at the same time."""
    loop = Loop()
    events: list[str] = []

    def work(name: str) -> str:
        for _ in paced(range(2 * TURN_ELEMENTS)):
            if not events or events[-1] != name:
                events.append(name)
        return name

    async def run() -> list[str]:
        return await asyncio.gather(*(result_of(loop.turns.call(work, name)) for name in "abc"))

    assert asyncio.run(run()) == ["a", "b", "c"]
    assert events == [*"abc", *"abc"]


def test_lists_are_emptied_between_pauses() -> None:
    loop = Loop()

    def work() -> list[int]:
        elements = list(range(LONG))
        seen = []
        for element in drained(elements):
            seen.append(element)
            assert len(elements) + len(seen) == LONG
        assert loop.pauses == LONG // TURN_ELEMENTS
        release(more := [0] * (2 * TURN_ELEMENTS * RELEASED_AT_ONCE))
        assert more == []
        return seen

    assert asyncio.run(result_of_call(loop, work)) == list(range(LONG))
    assert loop.pauses == LONG // TURN_ELEMENTS + 2


async def result_of_call(loop: Loop, function: Callable[..., T], *arguments: Any) -> T:
    return await result_of(loop.turns.call(function, *arguments))


# Errors.


@pytest.mark.parametrize("count", [1, LONG])
def test_an_error_is_raised_where_the_result_is_awaited(count: int) -> None:
    loop = Loop()

    def fail() -> None:
        many(count)
        raise KeyError(count)

    async def failing() -> None:
        fail()

    for start in (
        lambda: result_of_call(loop, fail), lambda: loop.turns.run(failing()), lambda: loop.turns.wait(fail)
    ):  # fmt: skip
        with pytest.raises(KeyError):
            asyncio.run(_awaited(start))
    assert asyncio.run(result_of_call(loop, many)) == LONG


def test_a_task_that_is_cancelled_while_it_pauses_cleans_up() -> None:
    loop = Loop()
    ended: list[str] = []

    def work(name: str) -> None:
        try:
            many(10 * LONG)
        except asyncio.CancelledError:
            # It may pause again.
            many()
            raise
        finally:
            ended.append(name)

    async def working() -> None:
        work("run")

    async def cancel() -> None:
        for coroutine in (result_of_call(loop, work, "call"), loop.turns.run(working())):
            task = asyncio.create_task(coroutine)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert ended == ["call", "run"]


def test_a_paused_call_that_is_dropped_cleans_up() -> None:
    """So the tasks of an event loop end that does not run any more."""
    loop = Loop()
    ended: list[str] = []

    async def working() -> None:
        try:
            many()
        finally:
            ended.append("run")

    for coroutine in (loop.turns.run(working()), loop.turns.run(working())):
        coroutine.send(None)
        coroutine.close()
    assert ended == ["run", "run"]


# Waiting in a turn.


def test_a_call_can_wait_for_an_awaitable() -> None:
    loop = Loop()

    async def later(value: str) -> str:
        await asyncio.sleep(0)
        if not value:
            raise KeyError(value)
        return value

    def work() -> str:
        assert is_in_turn()
        first = wait_in_turn(later("a"))
        with pytest.raises(KeyError):
            wait_in_turn(later(""))
        many(TURN_ELEMENTS - 1)
        return first + wait_in_turn(later("b"))

    assert asyncio.run(result_of_call(loop, work)) == "ab"
    # After it has waited, a call has a new turn.
    assert loop.pauses == 0


def test_calls_and_coroutines_in_a_turn() -> None:
    """A handler that runs in a turn waits for its coroutine, which runs in turns itself."""
    loop = Loop()

    async def inner(value: int) -> int:
        count = many(value)
        await asyncio.sleep(0)
        return count + many(value)

    def outer() -> int:
        small = loop.turns.call(many, 3)
        large = loop.turns.call(many)
        assert small == 3
        assert isinstance(large, Coroutine)
        total: int = small + wait_in_turn(large) + wait_in_turn(loop.turns.run(inner(LONG)))
        return total + many()

    assert asyncio.run(result_of_call(loop, outer)) == 3 + 4 * LONG
    assert loop.pauses == 4 * LONG // TURN_ELEMENTS


def test_a_coroutine_runs_in_the_turn_of_its_caller() -> None:
    loop = Loop()
    ended: list[str] = []

    async def inner(futures: list[asyncio.Future[int]]) -> int:
        assert is_in_turn()
        total = many()
        for future in futures:
            total += await future
            await asyncio.sleep(0)
        return total

    def outer(futures: list[asyncio.Future[int]], name: str) -> int:
        try:
            return wait_in_turn(inner(futures))
        finally:
            ended.append(name)

    async def run() -> None:
        done, first, second, failed = (asyncio.get_running_loop().create_future() for _ in range(4))
        done.set_result(1)
        calls = {
            name: asyncio.ensure_future(result_of_call(loop, outer, futures, name))
            for name, futures in (("a", [first, second, done]), ("b", [second]), ("c", [first, failed]), ("d", []))
        }
        assert await calls["d"] == LONG
        first.set_result(10)
        await asyncio.sleep(0)
        assert ended == ["d"]
        second.set_result(100)
        failed.set_exception(KeyError())
        assert await calls["a"] == LONG + 111
        assert await calls["b"] == LONG + 100
        with pytest.raises(KeyError):
            await calls["c"]

    asyncio.run(run())


def test_a_coroutine_that_does_not_wait_does_not_pause() -> None:
    async def inner() -> int:
        return many(3)

    assert Loop().turns.call(lambda: wait_in_turn(inner())) == 3


# Coroutines.


def test_a_loop_may_await() -> None:
    """Each part of a coroutine may run on another stack."""
    loop = Loop()

    async def work(name: str) -> list[str]:
        names = []
        for element in paced(range(20)):
            many(TURN_ELEMENTS // 2)
            await asyncio.sleep(0 if element % 2 else 0.0001)
            names.append(f"{name}{element}")
            many(TURN_ELEMENTS)
        return names

    async def run() -> list[list[str]]:
        return await asyncio.gather(*(loop.turns.run(work(name)) for name in "abc"))

    assert asyncio.run(run()) == [[f"{name}{element}" for element in range(20)] for name in "abc"]


def test_the_time_of_all_turns_of_a_coroutine_counts_and_not_what_it_waits_for() -> None:
    loop = Loop(element_ns=TURN_NS)

    async def work() -> int:
        loop.handle_all(range(3))
        loop.now_ns += 5
        await asyncio.sleep(0)
        loop.now_ns += 2
        return turns_ns()

    async def others() -> None:
        await asyncio.sleep(0)
        loop.now_ns += 1_000 * TURN_NS

    async def main() -> int:
        worked, _ = await asyncio.gather(loop.turns.run(work()), others())
        return worked

    assert asyncio.run(main()) == 3 * TURN_NS + 7
    assert loop.pauses > 0
    assert turns_ns() == 0


def test_errors_are_raised_in_the_coroutine() -> None:
    loop = Loop()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError

    async def work() -> str:
        with pytest.raises(KeyError):
            await fail()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
        many()
        return "ok"

    assert asyncio.run(loop.turns.run(work())) == "ok"


def test_a_coroutine_can_be_cancelled_while_it_awaits() -> None:
    loop = Loop()
    ended: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            many()
            ended.append("ended")
        return "stopped"

    async def cancel() -> str:
        task = asyncio.create_task(loop.turns.run(work()))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(cancel()) == "stopped"
    assert ended == ["ended"]


# Stacks.


def test_other_threads_have_no_turns() -> None:
    loop = Loop()

    def work() -> int:
        count: int = wait_in_turn(asyncio.get_running_loop().run_in_executor(None, many))
        return count

    assert asyncio.run(result_of_call(loop, work)) == LONG
    assert loop.pauses == 0


def test_stacks_are_reused_and_keep_nothing() -> None:
    class Argument: ...

    loop = Loop()
    argument = Argument()
    kept = ref(argument)

    def work(some: Argument) -> list[Argument]:
        local = [some]
        many()
        return local

    async def run(count: int, some: Argument) -> None:
        await asyncio.gather(*(result_of_call(loop, work, some) for _ in range(count)))

    asyncio.run(run(1, argument))
    assert len(loop.turns._idle) == 1
    asyncio.run(run(2 * MAX_IDLE, argument))
    assert len(loop.turns._idle) == MAX_IDLE
    del argument
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("count", [1, LONG])
def test_errors_do_not_keep_what_has_failed(count: int) -> None:
    """A cycle of an error and its traceback would keep a request of 100 MB until it is collected as garbage."""

    class Argument: ...

    loop = Loop()

    def work(some: Argument) -> None:
        many(count)
        raise KeyError(count)

    async def working(some: Argument) -> None:
        work(some)

    async def run() -> None:
        for start in (
            lambda some: result_of_call(loop, work, some), lambda some: loop.turns.run(working(some))
        ):  # fmt: skip
            argument = Argument()
            kept = ref(argument)
            with suppress(KeyError):
                await start(argument)
            del argument
            assert kept() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
