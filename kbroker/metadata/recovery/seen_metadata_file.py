"""The file last-metadata-seen of a data directory: how new the metadata are that the broker has seen.

It is written after each change, without delaying what the change causes. A crash may leave an older one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kbroker.metadata.image import NOTHING_SEEN, SeenMetadata
from kbroker.metadata.store.znodes import decode_row
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.file_names import METADATA_SEEN

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.disk import Disk
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

# The interval of attempts after a failure, in seconds.
RETRY_S = 1.0


def read_seen_metadata(disk: Disk, directory: str, cluster_id: str) -> SeenMetadata:
    """Return what the broker of a data directory has seen of a cluster; nothing if the file is missing or damaged."""
    try:
        found_id, *values = json.loads(disk.read(f"{directory}/{METADATA_SEEN}"))
        return decode_row(SeenMetadata, values) if found_id == cluster_id else NOTHING_SEEN
    except (OSError, ValueError, TypeError):
        return NOTHING_SEEN


class SeenMetadataFile:
    """`path`: the data directory."""

    def __init__(self, environment: Environment, path: str) -> None:
        self._environment = environment
        self._directory, self._path = path, f"{path}/{METADATA_SEEN}"
        self._cluster_id = ""
        self._stored: SeenMetadata | None = None
        self._latest = NOTHING_SEEN
        self._writing: Task[None] | None = None
        self._is_finishing = False

    async def read(self, cluster_id: str) -> SeenMetadata:
        """Return what is stored of this cluster, whose metadata are stored from now on."""
        self._cluster_id = cluster_id
        return await self._environment.offload(read_seen_metadata, self._environment.disk, self._directory, cluster_id)

    def write(self, seen: SeenMetadata) -> None:
        """Store what was seen, soon. Later calls replace what is not written yet."""
        self._latest = seen
        if self._writing is None:
            self._writing = self._environment.loop.create_task(self._write())

    async def _write(self) -> None:
        is_reported = False
        while self._stored != self._latest:
            latest = self._latest
            data = json.dumps([self._cluster_id, *latest], separators=(",", ":")).encode()
            try:
                await self._environment.offload(self._environment.disk.write_atomic, self._path, data)
                self._stored = latest
            except OSError as error:
                if self._is_finishing:
                    break
                if not is_reported:
                    log.warning(
                        "file not written yet: an older copy of the metadata could go unnoticed after a restart",
                        path=self._path, reason=error,
                    )  # fmt: skip
                is_reported = True
                await self._environment.sleep(RETRY_S)
        self._writing = None

    async def finish(self) -> None:
        """Wait until what was seen is stored, or cannot be."""
        self._is_finishing = True
        if self._writing is not None:
            await self._writing
