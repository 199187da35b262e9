"""Tests that are coroutines, on asyncio's event loop. For tests in virtual time see simulated_broker.broker_test."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test."""

    @wraps(test)
    def run_test(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run_test
