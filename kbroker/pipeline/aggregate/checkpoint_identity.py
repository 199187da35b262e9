"""The note that an aggregate leaves in its checkpoint: of what the state there is.

Spark itself notices another definition late or not at all, and then in words that nobody can act on.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kbroker.pipeline.aggregate.definition import AggregateDefinition, differences
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import Storage

FILE_NAME = "kbroker-aggregate.json"
LOCK = ".lock"
FORMAT = "kbroker-aggregate"
VERSION = 1


@dataclass(frozen=True)
class CheckpointIdentity:
    """What an aggregate is: its id, what it computes, of which topics, and where to."""

    id: str
    definition: AggregateDefinition
    topic_ids: Mapping[str, str]  # empty text where the broker has none
    target: str  # "topic NAME" or "files"

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "id": self.id,
            "definition": self.definition.as_json(),
            "topic_ids": dict(self.topic_ids),
            "target": self.target,
        }


def claim_checkpoint(
    storage: Storage, definition: AggregateDefinition, topic_ids: Mapping[str, str], target: str
) -> CheckpointIdentity:
    """The note of a checkpoint, which is written where the checkpoint is new.

    Raises PipelineError for a checkpoint of something else: another definition, target, or topics that were deleted
    and created again since.
    """
    if not storage.exists(FILE_NAME):
        if storage.list_directory(""):
            raise PipelineError(f"{storage.root} is not empty and holds no aggregate's checkpoint: name another one")
        note = CheckpointIdentity(str(uuid.uuid4()), definition, topic_ids, target)
        storage.create(FILE_NAME, json.dumps(note.as_json(), indent=2).encode())
    note = _read(storage)
    changed = differences(definition, note.definition)
    if note.target != target:
        changed.append(f"the target {target}, before {note.target}")
    if changed:
        raise PipelineError(
            f"the checkpoint {storage.root} is of another aggregate ({'; '.join(changed)}): "
            "name another --checkpoint, which begins anew"
        )
    for topic, topic_id in topic_ids.items():
        if note.topic_ids[topic] != topic_id:
            raise PipelineError(
                f"topic {topic} was deleted and created again since the checkpoint {storage.root} was begun: "
                "name another --checkpoint, which begins anew"
            )
    return note


def _read(storage: Storage) -> CheckpointIdentity:
    try:
        found = json.loads(storage.read(FILE_NAME))
        if found["format"] != FORMAT:
            raise KeyError("format")
        if found["version"] > VERSION:
            raise PipelineError(f"{storage.root}/{FILE_NAME} was written by a newer kbroker")
        return CheckpointIdentity(
            found["id"], AggregateDefinition.from_json(found["definition"]), found["topic_ids"], found["target"]
        )
    except (ValueError, KeyError, TypeError):
        raise PipelineError(f"{storage.root}/{FILE_NAME} is damaged or of something else") from None


@contextmanager
def lock_checkpoint(storage: Storage) -> Iterator[None]:
    """Holds the checkpoint: two runs at once would put older results in the place of newer ones.

    PipelineError where another process of this machine holds it. A file system that Hadoop reaches has no locks: there
    Spark ends the run that is behind, after its batch.
    """
    if not isinstance(storage, LocalStorage):
        yield
        return
    descriptor = os.open(os.path.join(storage.root, LOCK), os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"the checkpoint {storage.root} is in use: this aggregate runs already") from None
        yield
    finally:
        os.close(descriptor)
