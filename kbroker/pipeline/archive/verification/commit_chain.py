"""A manifest read from its first file to its last: whether the commits follow on, and the state that they make.

A manifest that is damaged gives findings and the state that can be made of the rest, so that files are still looked at.
"""

from dataclasses import replace

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest.model import (
    ArchiveState,
    ManifestCommit,
    OffsetRange,
    apply_commit,
    apply_commits,
)
from kbroker.pipeline.archive.verification.findings import Finding, difference, merged
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

ATTEMPTS = 5


class Chain:
    """One reading of a manifest."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.findings: list[Finding] = []
        self.state = ArchiveState()
        self.removed: set[str] = set()  # files that commits took out again
        self._digest: str | None = ""  # of the latest commit; None where it cannot be known
        self._is_whole = True  # whether the state is what all commits make
        self._pending: list[tuple[int, ManifestCommit]] = []  # read, and not in the state yet
        self._missing: list[OffsetRange] = []  # numbers of commits
        found = [manifest.parsed_name(entry.name) for entry in storage.list_directory(manifest.DIRECTORY)]
        self._commits = {one[0] for one in found if one is not None and not one[1]}
        self._states = {one[0] for one in found if one is not None and one[1]}

    def read(self) -> None:
        """Makes the state of all commits. Raises Absent when the manifest's old files are removed meanwhile."""
        expected = first = self._first()
        # Not range(first, last + 1): one file with a large number in its name would make that endless.
        for number in sorted(number for number in self._commits | self._states if number >= first):
            if number > expected:
                self._miss(expected, number)
            if number in self._commits:
                self._commit(number)
            elif self._is_whole:
                self._miss(number, number + 1)
            if number in self._states:
                self._folded(number)
            expected = number + 1
        self._fold()
        for start, end in merged(self._missing):
            which = f"commit {start} is" if end - start == 1 else f"commits {start} to {end - 1} are"
            self._add(manifest.commit_path(start), f"{which} not there")

    def _miss(self, start: int, end: int) -> None:
        """Commits `start` to `end` - 1 are not there."""
        self._missing.append(OffsetRange(start, end))
        self._is_whole, self._digest = False, None

    def _first(self) -> int:
        """The number with which the history begins: 0, or the state that an older history was folded into."""
        first = min(self._commits, default=0)
        if first > 0:
            first = min((number for number in self._states if number >= first - 1), default=0)
            self._is_whole, self._digest = False, None
        return first

    def _commit(self, number: int) -> None:
        path = manifest.commit_path(number)
        try:
            commit, previous, digest = manifest.decode_commit(manifest.read(self._storage, path), number, path)
        except FileMissingError:
            raise
        except PipelineError as error:
            self._add(path, message_without_path(self._storage, path, error))
            self._is_whole, self._digest = False, None
            return
        if self._digest is not None and previous != self._digest:
            self._add(path, f"was made after another commit {number - 1} than the one that is there")
        self._pending.append((number, commit))
        self.removed.update(commit.remove)
        self._digest = digest

    def _fold(self) -> None:
        pending, self._pending = self._pending, []
        try:
            self.state = apply_commits(self.state, pending)
            return
        except PipelineError:
            pass
        for number, commit in pending:
            try:
                self.state = apply_commit(self.state, number, commit)
            except PipelineError as error:
                # Behind a commit that is missing this is only to be expected.
                if self._is_whole:
                    self._add(manifest.commit_path(number), str(error))
                self.state = salvaged(self.state, number, commit)

    def _folded(self, number: int) -> None:
        path = manifest.state_path(number)
        try:
            state, previous, _ = manifest.decode_state(manifest.read(self._storage, path), number, path)
        except FileMissingError:
            raise
        except PipelineError as error:
            self._add(path, message_without_path(self._storage, path, error))
            return
        if self._digest is not None and previous != self._digest:
            self._add(path, f"was folded after another commit {number} than the one that is there")
        elif self._is_whole:
            self._fold()
            if state != self.state:
                self._add(path, f"is not what the commits up to {number} make")
        else:
            self.state, self._digest, self._is_whole, self._pending = state, previous, True, []

    def _add(self, path: str, what: str) -> None:
        self.findings.append(difference("manifest", what, file=path))


def read(storage: Storage) -> Chain:
    """The manifest of an archive as it is now.

    Raises PipelineError when the manifest is changed under the reading time and again.
    """
    for _ in range(ATTEMPTS):
        chain = Chain(storage)
        try:
            chain.read()
        except FileMissingError:
            continue
        return chain
    raise PipelineError(f"{storage.root}: the manifest's files vanish while they are read")


def salvaged(state: ArchiveState, number: int, commit: ManifestCommit) -> ArchiveState:
    """What a commit says, taken over although it does not follow."""
    files = {path: file for path, file in state.files.items() if path not in commit.remove}
    covered = {at: list(spans) for at, spans in state.covered.items()}
    for topic, partition, start, end in commit.covered:
        covered.setdefault(TopicPartition(topic, partition), []).append(OffsetRange(start, end))
    return replace(
        state,
        number=number,
        time_ms=commit.time_ms,
        settings=state.settings if commit.settings is None else commit.settings,
        files=files | {file.path: file for file in commit.add},
        covered={at: merged(spans) for at, spans in covered.items()},
        gaps=(*state.gaps, *commit.gaps),
        topics={**state.topics, **(commit.topics or {})},
    )
