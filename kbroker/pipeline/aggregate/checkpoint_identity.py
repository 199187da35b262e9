"""A file in an aggregate's checkpoint that identifies the aggregate.

Spark detects another definition late or not at all, and its error does not say what changed.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from kbroker.archive.storage.local import LocalStorage
from kbroker.archive.storage.storage import Storage
from kbroker.archive.typed_json import read_json
from kbroker.pipeline.aggregate.definition import AggregateDefinition, incompatible_changes
from kbroker.pipeline.errors import PipelineError

FILE_NAME = "kbroker-aggregate.json"
LOCK_NAME = ".lock"
FORMAT = "kbroker-aggregate"
VERSION = 1


@dataclass(frozen=True)
class CheckpointIdentity:
    """An aggregate's id, definition, source topics and target."""

    id: str
    definition: AggregateDefinition
    topic_ids: Mapping[str, str]  # empty if the broker has no topic ids
    target: str  # "topic NAME" or "files"


def claim_checkpoint(
    storage: Storage, definition: AggregateDefinition, topic_ids: Mapping[str, str], target: str
) -> CheckpointIdentity:
    """Return the identity in a checkpoint, after creating it in a new checkpoint.

    Raises PipelineError if the checkpoint has another definition or target, or if a topic was deleted and created
    again since.
    """
    if not storage.exists(FILE_NAME):
        if storage.list_directory(""):
            raise PipelineError(
                f"{storage.root} is not empty and not the checkpoint of an aggregate: use another directory"
            )
        new = CheckpointIdentity(str(uuid.uuid4()), definition, topic_ids, target)
        storage.create(FILE_NAME, json.dumps({"format": FORMAT, "version": VERSION, **asdict(new)}, indent=2).encode())
    identity = _read(storage)
    changed = incompatible_changes(definition, identity.definition)
    if identity.target != target:
        changed.append(f"the target {target}, before {identity.target}")
    if changed:
        raise PipelineError(
            f"the checkpoint {storage.root} belongs to another aggregate ({'; '.join(changed)}): "
            "use another --checkpoint to start a new one"
        )
    for topic, topic_id in topic_ids.items():
        if identity.topic_ids[topic] != topic_id:
            raise PipelineError(
                f"topic {topic} was deleted and created again since the checkpoint {storage.root} was created: "
                "use another --checkpoint to start a new aggregate"
            )
    return identity


def _read(storage: Storage) -> CheckpointIdentity:
    try:
        data = json.loads(storage.read(FILE_NAME))
        if data["format"] != FORMAT:
            raise KeyError("format")
        if data["version"] > VERSION:
            raise PipelineError(f"{storage.root}/{FILE_NAME} was written by a newer kbroker")
        return read_json(CheckpointIdentity, data)
    except (ValueError, KeyError, TypeError):
        raise PipelineError(f"{storage.root}/{FILE_NAME} is damaged, or not the file of an aggregate") from None


@contextmanager
def lock_checkpoint(storage: Storage) -> Iterator[None]:
    """Lock the checkpoint: of two simultaneous runs, one would replace newer results with older ones.

    Raises PipelineError if another process of this machine holds the lock. Object stores have no locks: there Spark
    stops the run that is behind, after its batch.
    """
    if not isinstance(storage, LocalStorage):
        yield
        return
    descriptor = os.open(os.path.join(storage.root, LOCK_NAME), os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"the checkpoint {storage.root} is in use: this aggregate is already running") from None
        yield
    finally:
        os.close(descriptor)
