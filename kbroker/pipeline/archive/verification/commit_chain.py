"""Reads a complete manifest, checks that each commit continues the one before it, and applies the commits.

A damaged manifest results in findings and in the state that can be derived from the rest, so that the data files are
verified nevertheless.
"""

from dataclasses import replace

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, commit_path, merge_ranges, state_path
from kbroker.pipeline.archive.manifest import ArchiveState, ManifestCommit, apply_commit, apply_commits
from kbroker.pipeline.archive.manifest_files import list_manifest, read_commit, read_state
from kbroker.pipeline.archive.verification.findings import Finding, difference
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import FileMissingError, Storage, message_without_path

ATTEMPTS = 5


def read_chain(storage: Storage) -> "CommitChain":
    """Read the current manifest. Raises PipelineError if files keep being removed while it is read."""
    for _ in range(ATTEMPTS):
        chain = CommitChain(storage)
        try:
            chain.read()
        except FileMissingError:
            continue
        return chain
    raise PipelineError(f"{storage.root}: the manifest's files are removed while they are read")


class CommitChain:
    """The commits of a manifest, and the state that they produce."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.findings: list[Finding] = []
        self.state = ArchiveState()
        self.removed_files: set[str] = set()  # data files that commits removed
        self._digest: str | None = ""  # of the latest commit; None if it is unknown
        self._is_complete = True  # whether no commit is missing from the state
        self._unapplied: list[tuple[int, ManifestCommit]] = []  # read, but not in the state yet
        self._missing: list[OffsetRange] = []  # commit numbers
        self._commits, self._states = list_manifest(storage)

    def read(self) -> None:
        """Read all commits and state files. Raises FileMissingError if one is removed after it was listed."""
        expected = first = self._first_number()
        # Not range(first, last + 1): a file with a huge number in its name would make the loop endless.
        for number in sorted(number for number in self._commits | self._states if number >= first):
            if number > expected:
                self._add_missing(expected, number)
            if number in self._commits:
                self._read_commit(number)
            elif self._is_complete:
                self._add_missing(number, number + 1)
            if number in self._states:
                self._read_state(number)
            expected = number + 1
        self._apply()
        for start, end in merge_ranges(self._missing):
            text = f"commit {start} is missing" if end - start == 1 else f"commits {start} to {end - 1} are missing"
            self._add_finding(commit_path(start), text)

    def _first_number(self) -> int:
        """Return the first number to read: 0, or that of the first state file if older commits were removed."""
        first = min(self._commits, default=0)
        if first > 0:
            first = min((number for number in self._states if number >= first - 1), default=0)
            self._is_complete, self._digest = False, None
        return first

    def _add_missing(self, start: int, end: int) -> None:
        """Record that the commits [start, end) are missing."""
        self._missing.append(OffsetRange(start, end))
        self._is_complete, self._digest = False, None

    def _read_commit(self, number: int) -> None:
        path = commit_path(number)
        try:
            commit, previous_digest, digest = read_commit(self._storage, number)
        except FileMissingError:
            raise
        except PipelineError as error:
            self._add_finding(path, message_without_path(self._storage, path, error))
            self._is_complete, self._digest = False, None
            return
        if self._digest is not None and previous_digest != self._digest:
            self._add_finding(path, f"continues another commit {number - 1} than the one in the manifest")
        self._unapplied.append((number, commit))
        self.removed_files.update(commit.remove)
        self._digest = digest

    def _read_state(self, number: int) -> None:
        path = state_path(number)
        try:
            state, commit_digest, _ = read_state(self._storage, number)
        except FileMissingError:
            raise
        except PipelineError as error:
            self._add_finding(path, message_without_path(self._storage, path, error))
            return
        if self._digest is not None and commit_digest != self._digest:
            self._add_finding(path, f"belongs to another commit {number} than the one in the manifest")
        elif self._is_complete:
            self._apply()
            if state != self.state:
                self._add_finding(path, f"is not the state that the commits up to {number} produce")
        else:
            self.state, self._digest, self._is_complete, self._unapplied = state, commit_digest, True, []

    def _apply(self) -> None:
        commits, self._unapplied = self._unapplied, []
        try:
            self.state = apply_commits(self.state, commits)
            return
        except PipelineError:
            pass
        for number, commit in commits:
            try:
                self.state = apply_commit(self.state, number, commit)
            except PipelineError as error:
                # After a missing commit contradictions are expected.
                if self._is_complete:
                    self._add_finding(commit_path(number), str(error))
                self.state = apply_contradicting(self.state, number, commit)

    def _add_finding(self, path: str, text: str) -> None:
        self.findings.append(difference("manifest", text, file=path))


def apply_contradicting(state: ArchiveState, number: int, commit: ManifestCommit) -> ArchiveState:
    """Return the state after a commit that contradicts it."""
    files = {path: file for path, file in state.files.items() if path not in commit.remove}
    covered = {tp: list(ranges) for tp, ranges in state.covered.items()}
    for topic, partition, start, end in commit.covered:
        covered.setdefault(TopicPartition(topic, partition), []).append(OffsetRange(start, end))
    return replace(
        state,
        commit_number=number,
        time_ms=commit.time_ms,
        settings=state.settings if commit.settings is None else commit.settings,
        files=files | {file.path: file for file in commit.add},
        covered={tp: merge_ranges(ranges) for tp, ranges in covered.items()},
        gaps=(*state.gaps, *commit.gaps),
        topics={**state.topics, **(commit.topics or {})},
    )
