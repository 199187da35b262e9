"""Resolves the regular expressions of consumer groups in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kbroker.coordinator.group.consumer.regex import GroupRegexes, ResolvedRegex, match_blocking

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.authorization.authorizer import Access
    from kbroker.runtime.environment import Environment


class RegexResolver:
    """`on_resolved` is called with a group's id and the results."""

    def __init__(
        self, environment: Environment, on_resolved: Callable[[str, Mapping[str, ResolvedRegex]], None]
    ) -> None:
        self._environment = environment
        self._on_resolved = on_resolved
        self._tasks: set[Task[None]] = set()

    def start(
        self, group_id: str, group: GroupRegexes, due: list[str], topics: list[str], version: int, access: Access | None
    ) -> None:
        """Resolve the expressions that are due over the names of the topics of an image version."""
        group.is_resolving = True
        task = self._environment.loop.create_task(self._resolve(group_id, group, due, topics, version, access))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(
        self, group_id: str, group: GroupRegexes, due: list[str], topics: list[str], version: int, access: Access | None
    ) -> None:
        timestamp_ms, is_refresh = self._environment.clock.now_ms(), len(due) == len(group.members)
        try:
            matches = await self._environment.offload(match_blocking, due, topics, access)
        finally:
            group.is_resolving = False
        if is_refresh:
            group.refreshed_version = version
        resolved = [ResolvedRegex(matched, version, timestamp_ms) for matched in matches]
        self._on_resolved(group_id, dict(zip(due, resolved, strict=True)))
