"""An archive: its manifest, read and added to by several processes at once, and what is left over beside it."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest import model, spark_view
from kbroker.pipeline.archive.manifest.model import ArchiveState, ManifestCommit
from kbroker.pipeline.archive.manifest.spark_view import SparkView
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import DirectoryEntry, FileMissingError, Storage
from kbroker.pipeline.storage.walk import walk

# Nobody goes on with a state as old as that, so the commits before the second-last state are of no use any longer.
FORGET_AFTER_MS = 24 * 3600 * 1000
# A file that was to be given its name at once, and whose writer died before.
_TEMPORARY_MS = 3600 * 1000
# What a directory may hold and be empty nevertheless: a new file system has the one, a creation that failed the other.
_NOTHING = {"lost+found", manifest.DIRECTORY}


class Archive:
    """An archive in a storage. One object is for one thread; any number of processes may have one each."""

    def __init__(self, storage: Storage) -> None:
        """See `open` and `open_or_create`."""
        self.storage = storage
        self._state = ArchiveState()
        self._digest = ""  # of the commit that the state is after
        self._last_saved = 0  # the latest commit after which the whole state is in a file
        self._view = SparkView(storage)

    @classmethod
    def open(cls, storage: Storage) -> "Archive":
        """Takes 0.2 s for 10,000 local files of three partitions each.

        Raises PipelineError when there is nothing, something else, a damaged manifest or one of a newer format.
        """
        archive = cls(storage)
        archive.state()
        return archive

    @classmethod
    def open_or_create(cls, storage: Storage, settings: Mapping[str, Any]) -> "Archive":
        """An archive to write to; its view for Spark is up to date. `settings` are those of a new one: to them come
        its id and format, and an existing archive keeps its own. A directory of something else is refused.
        """
        numbers = _numbers(storage)
        if not numbers.commits and not numbers.states:
            _require_empty(storage)
            own = {"format": model.FORMAT, "format_version": model.FORMAT_VERSION, "id": str(uuid.uuid4())}
            first = ManifestCommit("create", _now_ms(), settings={**settings, **own})
            storage.create(manifest.commit_path(0), manifest.encode_commit(0, first, ""))
        archive = cls.open(storage)
        archive.refresh_view()
        return archive

    def state(self) -> ArchiveState:
        """The archive as it is now. Reads what is new since the last call. Raises as `open` does."""
        numbers = _numbers(self.storage)
        if not numbers.commits:
            raise PipelineError(_what_it_is(self.storage))
        self._last_saved = max(numbers.states, default=0)
        if numbers.states and self._last_saved > self._state.number and self._state.number + 1 not in numbers.commits:
            self._load(self._last_saved)
        latest = max(numbers.commits)
        if latest < self._state.number:
            raise PipelineError(self._missing(self._state.number))
        if latest > self._state.number:
            commits, digest = self._new_commits(latest)
            self._state, self._digest = model.apply_commits(self._state, commits), digest
        return self._state

    def commit(self, build: Callable[[ArchiveState], ManifestCommit | None], attempts: int = 100) -> ArchiveState:
        """Adds the commit that `build` makes of the newest state; it is whole and durable when this returns.

        `build` is called again with a newer state when another writer was first. Where it gives None there is nothing
        to do. Returns the state afterwards. Raises PipelineError when the commit does not follow on the state, and
        what `build` raises; and when the storage fails: then the commit may have been made, as the next state tells.
        """
        for _ in range(attempts):
            state = self.state()
            commit = build(state)
            if commit is None:
                return state
            number = state.number + 1
            after = model.apply_commit(state, number, commit)
            data = manifest.encode_commit(number, commit, self._digest)
            # What is put there can be read: a file name or number that no reader takes is refused here.
            _, _, digest = manifest.decode_commit(data, number, "the commit")
            if self.storage.create(manifest.commit_path(number), data):
                self._state, self._digest = after, digest
                self._save(after)
                self.refresh_view()
                return after
        raise PipelineError(f"{self.storage.root}: other writers were first {attempts} times in turn; try again")

    def refresh_view(self) -> None:
        """Makes what Spark sees by itself (`spark.read.parquet(DIR)`) the archive as it is now."""
        self._view.bring_up_to_date(self.state)

    def listed_by_spark(self) -> dict[str, int]:
        """Sizes of the files that Spark sees by itself, by percent-encoded URI; compare spark_view.wanted_files.

        Raises PipelineError where it sees none or cannot read the view.
        """
        return SparkView(self.storage).listed()

    def forget_history(self, older_than_ms: int = FORGET_AFTER_MS) -> list[str]:
        """Removes the manifest files that no reader needs: those before the second-last state that are old enough.
        Returns their paths. The state keeps all that is of use; how it came about is lost.
        """
        numbers = _numbers(self.storage)
        states = sorted(numbers.states)
        # No reader can continue from a state beyond the last commit, so it does not make older commits dispensable.
        if len(states) < 2 or states[-1] > max(numbers.commits, default=-1):
            return []
        until = _now_ms() - older_than_ms
        found = [(manifest.parsed_name(one.name), one) for one in self.storage.list_directory(manifest.DIRECTORY)]
        old = [one.name for name, one in found if name and name[0] < states[-2] and one.modified_ms < until]
        paths = [f"{manifest.DIRECTORY}/{name}" for name in old]
        # With the commits it would be forgotten that these files were ours.
        kept = {path for staging in self._stagings().values() if staging.alive for path in staging.keeps}
        for path in self._replaced(paths) - kept:
            self.storage.delete(path)
        for path in paths:
            self.storage.delete(path)
        return paths

    def leftovers(self) -> list[str]:
        """What dead writers left: data files that no commit names any longer or ever did, staging directories, and
        unfinished files of the manifest. In the order in which they are to be removed."""
        files, stagings, now_ms = *self._uncommitted(), _now_ms()
        kept = {path for staging in stagings.values() if staging.alive for path in staging.keeps}
        dead = {writer for writer, staging in stagings.items() if not staging.alive}
        left = self._without_committed(path for path in files if owner.writer_of(path) in dead)
        others = [path for path in files if owner.writer_of(path) not in stagings and path not in kept]
        if others:
            replaced = self._replaced()
            left += [path for path in others if path in replaced]
        temporary = [
            f"{directory}/{entry.name}"
            for directory in (manifest.DIRECTORY, spark_view.DIRECTORY)
            for entry in self.storage.list_directory(directory)
            if entry.name.startswith(".") and entry.name.endswith(".tmp") and now_ms - entry.modified_ms > _TEMPORARY_MS
        ]
        return left + temporary + [f"{owner.STAGING}/{writer}" for writer in sorted(dead)]

    def remove_leftovers(self) -> list[str]:
        """Removes them, and returns their paths. The view for Spark is brought up to date before, so that nobody is
        told to read what is removed."""
        self.refresh_view()
        paths = self.leftovers()
        for path in paths:
            self.storage.delete(path, recursive=True)
        return paths

    def foreign(self) -> list[str]:
        """Files among the data that no commit names or ever named, and that no writer is at or died over: somebody
        else put them there. Readers that do not go by the manifest take them for the archive's.
        """
        files, stagings = self._uncommitted()
        others = [path for path in files if owner.writer_of(path) not in stagings]
        if others:  # but for those of a writer that has given up meanwhile
            others = [path for path in sorted(set(others) - self._replaced()) if self.storage.exists(path)]
        return others

    def _uncommitted(self) -> tuple[list[str], dict[str, owner.Staging]]:
        """The data files that the state does not name, and who is writing or was."""
        # In this order: a file of the listing that belongs to a commit is in the state; one that is still to be
        # committed has a staging directory.
        files = [entry.name for entry in data_files(self.storage)]
        stagings = self._stagings()
        committed = self.state().files
        return [path for path in files if path not in committed], stagings

    def _without_committed(self, paths: Iterable[str]) -> list[str]:
        """The paths of files that are not committed: through a link a committed file has a second path."""
        listed = list(paths)
        committed = {self._real_path(path) for path in self.state().files} if listed else set()
        return [path for path in listed if self._real_path(path) not in committed]

    def _real_path(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        return f"{self.storage.real_path(directory) or directory}/{name}"

    def _stagings(self) -> dict[str, owner.Staging]:
        """By writer."""
        found = self.storage.list_directory(owner.STAGING)
        writers = [entry.name for entry in found if entry.is_directory and owner.is_writer(entry.name)]
        return {writer: self._staging(writer) for writer in writers}

    def _staging(self, writer: str) -> owner.Staging:
        newest = max((entry.modified_ms for entry in walk(self.storage, f"{owner.STAGING}/{writer}")), default=0)
        try:
            data = self.storage.read(owner.owner_path(writer))
        except FileMissingError:
            data = b""
        return owner.staging(data, _now_ms() - newest)

    def _replaced(self, paths: Iterable[str] | None = None) -> set[str]:
        """The data files that commits have removed: these commits, or all that are not forgotten."""
        if paths is None:
            paths = [manifest.commit_path(number) for number in _numbers(self.storage).commits]
        replaced: set[str] = set()
        for path in paths:
            number, is_state = manifest.parsed_name(path.rpartition("/")[2]) or (0, True)
            if not is_state:
                data = manifest.read(self.storage, path)
                replaced.update(manifest.decode_commit(data, number, self.storage.uri(path))[0].remove)
        return replaced

    def _load(self, number: int) -> None:
        path = manifest.state_path(number)
        state, digest, _ = manifest.decode_state(manifest.read(self.storage, path), number, self.storage.uri(path))
        _require_format(self.storage, state.settings)
        self._state, self._digest = state, digest

    def _new_commits(self, latest: int) -> tuple[list[tuple[int, ManifestCommit]], str]:
        """With their numbers, and the digest of the last."""
        commits, digest = [], self._digest
        for number in range(self._state.number + 1, latest + 1):
            path = manifest.commit_path(number)
            where = self.storage.uri(path)
            try:
                data = manifest.read(self.storage, path)
            except FileMissingError:
                raise PipelineError(self._missing(number)) from None
            commit, previous, own = manifest.decode_commit(data, number, where)
            if previous != digest:
                raise PipelineError(f"{where}: does not follow on the commit before it")
            if number == 0:
                _require_format(self.storage, commit.settings or {})
            commits.append((number, commit))
            digest = own
        return commits, digest

    def _missing(self, number: int) -> str:
        return f"{self.storage.root}: commit {number} is missing in the manifest ({manifest.commit_path(number)})"

    def _save(self, state: ArchiveState) -> None:
        """Every now and then the whole state, so that the next to open the archive need not read every commit."""
        if state.number - self._last_saved >= manifest.STATE_EVERY:
            self.storage.replace(manifest.state_path(state.number), manifest.encode_state(state, self._digest))
            self._last_saved = state.number


def data_files(storage: Storage) -> list[DirectoryEntry]:
    """Every file that a reader may take for the archive's data: pyarrow reads all of them as Parquet, except names that
    begin with `_` or `.`.

    A directory in the result cannot be listed, or is a link that `walk` does not follow.
    """
    found = walk(storage, "", skip=lambda name: name[0] in "_.", tolerant=True)
    # lost+found is in the root of every new file system, and often only root may list it.
    return [entry for entry in found if not (entry.is_directory and entry.name in _NOTHING)]


class _Numbers:
    """Of the manifest's files."""

    def __init__(self) -> None:
        self.commits: set[int] = set()
        self.states: set[int] = set()


def _numbers(storage: Storage) -> _Numbers:
    numbers = _Numbers()
    for entry in storage.list_directory(manifest.DIRECTORY):
        found = manifest.parsed_name(entry.name)
        if found is not None:
            (numbers.states if found[1] else numbers.commits).add(found[0])
    return numbers


def _require_empty(storage: Storage) -> None:
    others = [entry.name for entry in storage.list_directory("") if entry.name not in _NOTHING]
    if others and not _numbers(storage).commits:  # else another process has just made the archive
        raise PipelineError(
            f"{storage.root} is no archive and not empty (it has {others[0]}); name a new or an empty directory"
        )


def _require_format(storage: Storage, settings: Mapping[str, Any]) -> None:
    if settings.get("format") != model.FORMAT:
        raise PipelineError(f"{storage.root}: the manifest is not that of a kbroker archive")
    version = settings.get("format_version")
    if not isinstance(version, int) or version > model.FORMAT_VERSION:
        raise PipelineError(f"{storage.root}: format version {version}, written by a newer kbroker than this one")


def _what_it_is(storage: Storage) -> str:
    if not storage.list_directory(""):
        return f"{storage.root}: no archive there; make one with: kbroker archive run"
    return f"{storage.root} is no archive: it has no {manifest.DIRECTORY} directory with commits"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
