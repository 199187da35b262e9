"""Validates batches completely in a test, without a broker."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from kbroker.replica.produce.record_rules import ValidatedBatch
from kbroker.replica.produce.slow_validation import AppendMustWait, RecordValidator
from kbroker.runtime.turns import Turns

T = TypeVar("T")


def validate_completely(validation: Callable[[], ValidatedBatch], calls: list[str] | None = None) -> ValidatedBatch:
    """Run a validation to its end. `calls`: the functions that it calls in threads are appended here."""
    try:
        return validation()
    except AppendMustWait as slow:
        needed = slow

    async def offload(function: Callable[..., T], *arguments: object) -> T:
        if calls is not None:
            calls.append(function.__name__)
        return function(*arguments)

    async def validate() -> ValidatedBatch:
        turns = Turns(lambda: asyncio.sleep(0), time.monotonic_ns)
        validator = RecordValidator(cast(Any, SimpleNamespace(offload=offload, turns=turns)))
        return cast(ValidatedBatch, await needed.wait(validator))

    return asyncio.run(validate())


def needs_slow_validation(validation: Callable[[], ValidatedBatch]) -> bool:
    try:
        validation()
    except AppendMustWait:
        return True
    return False
