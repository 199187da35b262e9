"""Turns of the event loop: a request of any size runs the same code, and others are served in between.

A request with up to 100,000 elements, or up to 100 MB of names, may take a second. The loops that such a request runs
through call `yield_if_due` for each element, directly or with `paced`. Where a request is served in turns, this pauses
the whole stack of calls when the turn is over, and the event loop continues; outside of a turn it has no effect. So no
function between the handler and the loop has to be a coroutine or a generator.

`Turns.call` and `Turns.run` run code on a greenlet of its own, a stack that can be left and continued. A request that
is known to be small runs without: entering a turn takes 0.5 µs.

What a caller of a function that yields has to consider: the state of the broker, apart from what the request owns, may
be another one afterwards, as after an `await`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Coroutine

T = TypeVar("T")
E = TypeVar("E")

# A turn ends after this many elements or nanoseconds, whichever comes first.
TURN_ELEMENTS = 128
TURN_NS = 250_000
# Freeing 100,000 elements at once takes 20 to 30 ms.
RELEASED_AT_ONCE = 64
# Greenlets that are kept for the next requests. Only as many as requests that have paused are in use.
MAX_IDLE = 64


def yield_if_due() -> None:
    """Called after each element of a loop that may be long: if the turn is over, let others run first.

    Raises what ends the request while it waits: CancelledError when the broker stops.
    """
    stack = getcurrent()
    if type(stack) is _Stack:
        stack.count_element()


def is_in_turn() -> bool:
    """Return whether the caller may pause in `yield_if_due` and in `wait_in_turn`."""
    return type(getcurrent()) is _Stack


def turns_ns() -> int:
    """Return the nanoseconds that the turns of the running call or coroutine have taken; 0 if it is in none."""
    stack = getcurrent()
    return stack.taken_ns() if type(stack) is _Stack else 0


def paced(elements: Iterable[E]) -> Iterable[E]:
    """Return an iterable of the elements that calls `yield_if_due` after each of them, if the caller is in a turn."""
    return _paced(elements) if type(getcurrent()) is _Stack else elements


def _paced(elements: Iterable[E]) -> Iterator[E]:
    for element in elements:
        yield element
        # The stack is another one after each `await` of the loop.
        yield_if_due()


def wait_in_turn(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable; others run meanwhile. The caller must be in a turn.

    A coroutine runs in it, too, and others run only while it waits.
    """
    stack = getcurrent()
    assert type(stack) is _Stack
    if not isinstance(awaitable, CoroutineType):
        return cast(T, stack.pause(awaitable))
    step: Callable[..., Any] = awaitable.send
    argument: Any = None
    try:
        while True:
            awaited = step(argument)
            try:
                argument = stack.pause(_Awaited(awaited))
                step = awaitable.send
            except BaseException as error:
                step, argument = awaitable.throw, error
    except StopIteration as end:
        return cast(T, end.value)
    finally:
        # The traceback of an error has this frame.
        del argument


def drained(elements: list[E]) -> Iterator[E]:
    """Yield the elements in order, and remove each from the list, which frees it."""
    elements.reverse()
    while elements:
        yield elements.pop()
        yield_if_due()


def release(elements: list[Any]) -> None:
    """Remove all elements from a list that is not needed any more."""
    while elements:
        del elements[-RELEASED_AT_ONCE:]
        yield_if_due()


class _Awaited:
    """What a coroutine has returned to its caller, instead of the task: the future that it waits for, or None.

    The task is handed the future later. Until then, others may wait for it: so its mark of `await` is taken back.
    """

    __slots__ = ("_future",)

    def __init__(self, future: Future[Any] | None) -> None:
        self._future = future
        if future is not None:
            future._asyncio_future_blocking = False

    def __await__(self) -> Generator[Future[Any] | None, None, None]:
        if self._future is not None:
            self._future._asyncio_future_blocking = True
        yield self._future


class _Failure:
    """The exception with which a call has ended."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error

    def take(self) -> BaseException:
        """Return the exception, and forget it: its traceback may have the frame that has this object."""
        error, self._error = self._error, None
        assert error is not None
        return error


class _Stack(greenlet):
    """A stack on which one call runs at a time. `hub`: the greenlet that has started or continued the call."""

    # A greenlet is created with the attributes of its class: they need no __init__.
    hub: greenlet
    mono_ns: Callable[[], int]
    elements_left: int = 0
    end_ns: int = 0
    # The time of the call's turns before this one.
    former_turns_ns: int = 0
    # What the call waits for; None while it runs, and after its end.
    awaited: Awaitable[Any] | None = None
    # The result of the call or _Failure, until it is returned.
    result: Any = None

    def count_element(self) -> None:
        self.elements_left -= 1
        if self.elements_left <= 0 or self.mono_ns() >= self.end_ns:
            self.pause(_NEXT_TURN)

    def taken_ns(self) -> int:
        return self.former_turns_ns + self.mono_ns() - self.end_ns + TURN_NS

    def pause(self, awaited: Awaitable[Any]) -> Any:
        """Called on this stack. Returns the result of `awaited`, or raises its error."""
        self.awaited = awaited
        self.former_turns_ns = self.taken_ns()
        result = self.hub.switch()
        if type(result) is _Failure:
            raise result.take()
        return result

    def enter(self, *arguments: Any) -> Any:
        """Called on another stack: start a call, or continue it. Returns its result or _Failure; see `awaited`."""
        self.hub = getcurrent()
        self.awaited = None
        self.elements_left = TURN_ELEMENTS
        self.end_ns = self.mono_ns() + TURN_NS
        self.switch(*arguments)
        result, self.result = self.result, None
        return result


class _NextTurn:
    """What a call waits for whose turn is over."""

    def __await__(self) -> Generator[Any, None, None]:
        raise AssertionError("Turns replaces it")


_NEXT_TURN = _NextTurn()


def _serve_calls() -> None:
    """Run one call after another on a stack. Nothing of a call is kept until the next one."""
    stack = cast(_Stack, getcurrent())
    while True:
        function, arguments = stack.hub.switch()
        try:
            stack.result = function(*arguments)
        except BaseException as error:
            stack.result = _Failure(error)
        del function, arguments


def new_stack(mono_ns: Callable[[], int]) -> _Stack:
    stack = _Stack(_serve_calls)
    stack.mono_ns = mono_ns
    stack.hub = getcurrent()
    # It keeps the arguments of this switch for ever, so these are not those of a call.
    stack.switch()
    return stack


class Turns:
    """Runs calls and coroutines in turns. `next_turn` waits until the next turn may begin."""

    def __init__(self, next_turn: Callable[[], Awaitable[None]], mono_ns: Callable[[], int]) -> None:
        self._next_turn = next_turn
        self._mono_ns = mono_ns
        self._idle: list[_Stack] = []

    def call(self, function: Callable[..., T], *arguments: Any) -> T | Coroutine[Any, Any, T]:
        """Call a function in a turn. Returns its result; if it has paused, a coroutine that returns it."""
        stack = self._idle.pop() if self._idle else new_stack(self._mono_ns)
        stack.former_turns_ns = 0
        result = stack.enter(function, arguments)
        if stack.awaited is not None:
            return self._finish(stack)
        self._idle.append(stack)
        if type(result) is _Failure:
            raise result.take()
        return cast(T, result)

    async def wait(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a turn, and wait for its result."""
        result = self.call(function, *arguments)
        return await result if isinstance(result, CoroutineType) else cast(T, result)

    def run(self, coro: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs another one in turns."""
        return cast("Coroutine[Any, Any, T]", self._run(coro))

    async def _finish(self, stack: _Stack) -> Any:
        """Continue a paused call until its end."""
        result = await self._continue(stack)
        if type(result) is _Failure:
            raise result.take()
        return result

    async def _continue(self, stack: _Stack) -> Any:
        """Continue a paused call until its end. Returns its result or _Failure."""
        result = None
        while stack.awaited is not None:
            try:
                result = await (self._next_turn() if stack.awaited is _NEXT_TURN else stack.awaited)
            except BaseException as error:
                result = _Failure(error)
            result = stack.enter(result)
        if len(self._idle) < MAX_IDLE:
            self._idle.append(stack)
        return result

    @coroutine
    def _run(self, coro: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run each step of a coroutine, from one `await` to the next, on a stack."""
        step: Callable[..., Any] = coro.send
        argument: Any = None
        taken_ns = 0
        while True:
            stack = self._idle.pop() if self._idle else new_stack(self._mono_ns)
            stack.former_turns_ns = taken_ns
            result = stack.enter(step, (argument,))
            if stack.awaited is not None:
                result = yield from self._continue(stack).__await__()
            else:
                self._idle.append(stack)
            taken_ns = stack.taken_ns()
            if type(result) is _Failure:
                error = result.take()
                try:
                    if isinstance(error, StopIteration):
                        return cast(T, error.value)
                    raise error
                finally:
                    # Their tracebacks have this frame.
                    del error, argument, step
            try:
                argument = yield result
                step = coro.send
            except BaseException as error:
                step, argument = coro.throw, error
