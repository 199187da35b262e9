"""Discards the pending tasks of a process or a simulation that has ended."""

import asyncio
import warnings
from collections.abc import Iterable
from typing import Any


def discard_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Close tasks that will never run again, without warnings."""
    with warnings.catch_warnings():
        # Coroutines that a task created may never have been awaited.
        warnings.simplefilter("ignore", RuntimeWarning)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            try:
                task.get_coro().close()
            except BaseException:
                # Its cleanup code tried to continue on the dead loop.
                continue
