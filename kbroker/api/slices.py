"""Long lists of a request are handled in slices, between which the event loop serves other requests.

A request of the largest size has thousands of elements, or a name of 32 KB in each of them. Handled at once it would
delay all other clients by as long as it takes; a slice takes one or two milliseconds.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from kbroker.runtime.environment import Environment

T = TypeVar("T")
R = TypeVar("R")

# The cost of an element besides its size in bytes, and the cost of a slice.
ELEMENT_COST = 500
SLICE_COST = 256 * 1024


def is_long(sizes: Sequence[int]) -> bool:
    """Return whether elements of these sizes, in bytes, are more than one slice."""
    return len(sizes) * ELEMENT_COST + sum(sizes) > SLICE_COST


async def map_in_slices(
    environment: Environment, function: Callable[[T], R], elements: Sequence[T], sizes: Sequence[int]
) -> list[R]:
    """Return the results of a function for the elements, whose sizes are in bytes."""
    results = []
    cost = 0
    for element, size in zip(elements, sizes, strict=True):
        cost += ELEMENT_COST + size
        if cost > SLICE_COST:
            await environment.yield_to_loop()
            cost = ELEMENT_COST + size
        results.append(function(element))
    return results
