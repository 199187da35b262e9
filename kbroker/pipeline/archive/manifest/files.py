"""Lists and reads the files of a manifest."""

import hashlib
from typing import NamedTuple

from kbroker.pipeline.archive.layout import MANIFEST, commit_path, parse_manifest_name, state_path
from kbroker.pipeline.archive.manifest.codec import (
    DIGEST_FIELD_BYTES,
    DIGEST_PREFIX,
    DIGEST_SUFFIX,
    Decoded,
    damaged,
    decode_commit,
    decode_state,
)
from kbroker.pipeline.archive.manifest.model import ArchiveState, ManifestCommit
from kbroker.pipeline.storage.storage import MAX_READ_BYTES, FileTooLargeError, Storage

_PIECE_BYTES = 4 << 20


class ManifestListing(NamedTuple):
    """The numbers of the commits and state files in a manifest."""

    commits: set[int]
    states: set[int]


def list_manifest(storage: Storage) -> ManifestListing:
    """Return the numbers of all commits and state files; files with other names are ignored."""
    listing = ManifestListing(set(), set())
    for entry in storage.list_directory(MANIFEST):
        parsed = parse_manifest_name(entry.name)
        if parsed is not None:
            number, is_state = parsed
            (listing.states if is_state else listing.commits).add(number)
    return listing


def read_commit(storage: Storage, number: int) -> Decoded[ManifestCommit]:
    """Read commit `number`. Raises FileMissingError if it does not exist, and PipelineError if it is damaged."""
    path = commit_path(number)
    return decode_commit(read_manifest_file(storage, path), number, storage.uri(path))


def read_state(storage: Storage, number: int) -> Decoded[ArchiveState]:
    """Read the state file of commit `number`. Raises the errors of `read_commit`."""
    path = state_path(number)
    return decode_state(read_manifest_file(storage, path), number, storage.uri(path))


def read_manifest_file(storage: Storage, path: str) -> bytes:
    """Return the bytes of a manifest file. A file of more than 64 MiB is loaded only if its checksum is correct.

    Raises FileMissingError if it does not exist, and PipelineError.
    """
    try:
        return storage.read(path, MAX_READ_BYTES)
    except FileTooLargeError:
        size = storage.size(path)
    if not _has_valid_digest(storage, path, size):
        raise damaged(storage.uri(path), f"{size} bytes, checksum mismatch")
    return storage.read(path, size)


def _has_valid_digest(storage: Storage, path: str, size: int) -> bool:
    """Return whether a file ends with the digest of its content; holds at most 4 MiB in memory."""
    end = size - DIGEST_FIELD_BYTES
    field = storage.read_range(path, end, DIGEST_FIELD_BYTES)
    if not (field.startswith(DIGEST_PREFIX) and field.endswith(DIGEST_SUFFIX)):
        return False
    digest = hashlib.sha256()
    for start in range(0, end, _PIECE_BYTES):
        digest.update(storage.read_range(path, start, min(_PIECE_BYTES, end - start)))
    return field[len(DIGEST_PREFIX) : -len(DIGEST_SUFFIX)] == digest.hexdigest().encode()
