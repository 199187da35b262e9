"""The tables of the topics of a run, their states, and commits to them, while other processes may change them, too."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pyarrow.parquet as pq

from kbroker.archive.archive import Archive, ArchiveTable, ConflictError
from kbroker.archive.data_files import DataFile
from kbroker.archive.decoding.dead_letters import create_dead_letters, with_dead_letters
from kbroker.archive.decoding.decoder import MissingSchema
from kbroker.archive.decoding.settings import DecodeSettings
from kbroker.archive.decoding.topic_decoding import TopicDecoding
from kbroker.archive.topic_state import TopicState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.write_task import DeadLetterTarget, TopicTarget

ATTEMPTS = 100
# A commit writes small files and waits for the disk, or for an object store.
THREADS = 8

# Returns the next state of a table for its newest state, or None for no commit.
BuildState = Callable[[TopicState], TopicState | None]


class TableCommit(NamedTuple):
    """What a commit adds to the table of a topic."""

    topic: str
    build: BuildState
    files: Sequence[DataFile] = ()


class TopicTables:
    """The tables that a run has read or created. Used by one thread."""

    def __init__(self, archive: Archive, decode: DecodeSettings | None = None, registry_url: str = "") -> None:
        """`decode` replaces the settings of each table. `registry_url` has the credentials for the registry."""
        self.archive = archive
        self._decode = decode
        self._registry_url = registry_url
        self._tables: dict[str, ArchiveTable] = {}
        self._decodings: dict[str, TopicDecoding] = {}  # of the topics that are decoded
        self._dead_letters: dict[str, ArchiveTable] = {}  # of the topics that may have some

    def load(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """Return the states of these topics. Creates the tables that do not exist.

        A table is read once, and again when a commit of another process conflicts. Raises PipelineError if another
        program has changed the rows of one.
        """
        names = list(topics)
        new = [name for name in names if name not in self._tables]
        if new:
            existing = set(self.archive.topics())

            def open_table(name: str) -> ArchiveTable:
                return self.archive.table(name) if name in existing else self.archive.create_table(name)

            with ThreadPoolExecutor(THREADS) as pool:
                for name, table in zip(new, pool.map(open_table, new), strict=True):
                    _require_unchanged(table)
                    self._tables[name] = table
                    self._load_decoding(name, table)
        return {name: self._tables[name].state for name in names}

    def _load_decoding(self, name: str, table: ArchiveTable) -> None:
        decoding = TopicDecoding(table, self._decode, self._registry_url)
        if decoding.settings.decodings:
            self._decodings[name] = decoding
            self._dead_letters[name] = create_dead_letters(self.archive, name)

    def tables(self) -> list[ArchiveTable]:
        return list(self._tables.values())

    def forget(self) -> None:
        """Read all states again before the next use."""
        self._tables.clear()
        self._decodings.clear()
        self._dead_letters.clear()

    def write_targets(self, topics: Iterable[str]) -> dict[str, TopicTarget]:
        return {name: self._write_target(name) for name in topics}

    def _write_target(self, name: str) -> TopicTarget:
        decoding, dead = self._decodings.get(name), self._dead_letters.get(name)
        return TopicTarget(
            self._tables[name].write_target(),
            None if decoding is None else decoding.task(),
            None if dead is None else DeadLetterTarget(dead.write_target(), dead.state.resume_offsets()),
        )

    def require_dead_letters(self, topics: Iterable[str]) -> None:
        """Let the write targets of these topics have a table of dead letters, although they need not be decoded."""
        for name in topics:
            if name not in self._dead_letters:
                self._dead_letters[name] = create_dead_letters(self.archive, name)

    def learn_schemas(self, topic: str, missing: Iterable[MissingSchema]) -> None:
        """Change the decoded columns of a table for schemas that its records have. Raises ArchiveError."""
        self._decodings[topic].learn(missing)

    def commit_dead_letters(self, files: Mapping[str, Sequence[DataFile]]) -> None:
        """Add files to the tables of dead letters. Do this before the commits that cover their offsets.

        If those fail, the records are read again, and become dead letters once.
        """
        for topic, added in files.items():
            table = self._dead_letters[topic]
            for _ in range(ATTEMPTS):
                with suppress(ConflictError):
                    table.commit("append", with_dead_letters(table.state, added), added)
                    break
                table.refresh()
            else:
                raise _too_many_conflicts(table)

    def read_offsets(self, topic: str, files: Iterable[DataFile]) -> list[int]:
        """Return the offsets in files of a topic that are not committed yet, sorted."""
        io = self._tables[topic].iceberg.io
        offsets: list[int] = []
        for file in files:
            with io.new_input(file.path).open() as source:
                offsets += pq.read_table(source, columns=["offset"])["offset"].to_pylist()
        return sorted(offsets)

    def commit(self, kind: str, commits: Iterable[TableCommit]) -> None:
        """Make all commits, each in one step, several at a time.

        `build` is called again with a newer state if another process has committed first. Raises the first error after
        all have ended: then some of the commits may exist.
        """
        with ThreadPoolExecutor(THREADS) as pool:
            results = [pool.submit(self._commit, kind, commit) for commit in commits]
        for result in results:
            result.result()

    def _commit(self, kind: str, commit: TableCommit) -> None:
        table = self._tables[commit.topic]
        for _ in range(ATTEMPTS):
            state = commit.build(table.state)
            if state is None:
                return
            try:
                table.commit(kind, state, commit.files)
                return
            except ConflictError:
                table.refresh()
                _require_unchanged(table)
        raise _too_many_conflicts(table)


def _too_many_conflicts(table: ArchiveTable) -> PipelineError:
    return PipelineError(f"{table.location}: other writers committed first {ATTEMPTS} times in a row; try again")


def _require_unchanged(table: ArchiveTable) -> None:
    """Raise PipelineError if another program has changed the rows: then the state does not describe them anymore."""
    change = table.foreign_change()
    if change is not None:
        raise PipelineError(
            f"{table.location} was changed by another program ({change}), so it may have other records than the topic: "
            f"`kbroker archive verify` shows the differences"
        )
