"""Work on the elements of a large request, in slices between which the event loop serves other requests.

The work is a generator that yields after each element (`Steps`), so that a slice can end there. Of a small request all
elements are handled at once.
"""

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E")
K = TypeVar("K", bound=Hashable)
Steps = Generator[None, None, T]

# A slice ends after this many elements or nanoseconds, whichever comes first.
SLICE_ELEMENTS = 128
SLICE_NS = 500_000
RELEASED_PER_STEP = 64


class Slices:
    """The slices of one large request. `next_slice` waits until others have been served."""

    __slots__ = ("_elements_left", "_end_ns", "_mono_ns", "_next_slice")

    def __init__(self, next_slice: Callable[[], Awaitable[None]], mono_ns: Callable[[], int]) -> None:
        self._next_slice = next_slice
        self._mono_ns = mono_ns
        self._begin()

    def _begin(self) -> None:
        self._elements_left = SLICE_ELEMENTS
        self._end_ns = self._mono_ns() + SLICE_NS

    async def step(self) -> None:
        """Called after each element. Waits if the slice is over."""
        self._elements_left -= 1
        if self._elements_left <= 0 or self._mono_ns() >= self._end_ns:
            await self._next_slice()
            self._begin()

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps to their end, and return their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.step()


async def step(slices: Slices | None) -> None:
    """Called by a coroutine after each element. Waits if the slice of a large request is over."""
    if slices is not None:
        await slices.step()


def run_to_end(steps: Steps[T]) -> T:
    results: list[T] = []
    for _ in _collect(steps, results):
        pass
    return results[0]


def _collect(steps: Steps[T], results: list[T]) -> Steps[None]:
    """Append the result. `yield from` returns it without a StopIteration, which would take 0.4 us."""
    results.append((yield from steps))


async def in_slices(slices: Slices | None, steps: Steps[T]) -> T:
    """Return the result of the steps of a large request, or (without slices) of a small one."""
    return run_to_end(steps) if slices is None else await slices.run(steps)


def at_once_or_in_slices(slices: Slices | None, steps: Steps[T | Awaitable[T]]) -> T | Awaitable[T]:
    """Like `in_slices`, without waiting if the request is small. The result of the steps may be an awaitable."""
    return run_to_end(steps) if slices is None else _awaited(slices, steps)


async def _awaited(slices: Slices, steps: Steps[T | Awaitable[T]]) -> T:
    result = await slices.run(steps)
    return await result if isinstance(result, Awaitable) else result


def each(function: Callable[[E], T], elements: Iterable[E]) -> Steps[list[T]]:
    """Call a function with each element, one per step. The result is the list of its results."""
    results = []
    for element in elements:
        results.append(function(element))
        yield
    return results


def each_once(function: Callable[[K], Steps[T]], keys: Iterable[K]) -> Steps[list[T]]:
    """Like `each`, but equal keys have the same result.

    A small request that names something large 10,000 times would otherwise take gigabytes.
    """
    known: dict[K, T] = {}
    results = []
    for key in keys:
        result = known.get(key)
        if result is None:
            result = known[key] = yield from function(key)
        results.append(result)
        yield
    return results


def drained(elements: list[E]) -> Iterator[E]:
    """Yield the elements in order, and remove each from the list. Freeing 100,000 at once takes 20 ms."""
    elements.reverse()
    while elements:
        yield elements.pop()


def release(elements: list[Any]) -> Steps[None]:
    """Remove all elements from a list that is not needed any more."""
    while elements:
        del elements[-RELEASED_PER_STEP:]
        yield
