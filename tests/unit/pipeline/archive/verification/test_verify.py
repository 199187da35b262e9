"""What a verification decides from numbers: parts, ranges, buckets, and the chain of a manifest."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest.model import (
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    ManifestCommit,
    OffsetRange,
    PartitionStats,
    apply_commits,
)
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.archive.verification import commit_chain as verification_chain
from kbroker.pipeline.archive.verification import files as verification_files
from kbroker.pipeline.archive.verification import rules as verification_rules
from kbroker.pipeline.archive.verification.findings import (
    as_spans,
    common,
    difference,
    line,
    merged,
    minus,
    note,
    offsets_text,
)
from kbroker.pipeline.archive.verification.rules import Measured, Scope, Sum
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append, created

DAY = "2026-01-01"
AT = TopicPartition("t", 0)


def part(first: int, last: int, rows: int | None = None, partition: int = 0, checksum: int = 7) -> PartitionStats:
    return PartitionStats(partition, first, last, last - first + 1 if rows is None else rows, 10, 1000, 2000, checksum)


def file(name: str, *parts: PartitionStats, topic: str = "t") -> DataFile:
    return DataFile(f"topic={topic}/date={DAY}/{name}.parquet", topic, DAY, 100, "0" * 64, parts)


def state(
    *files: DataFile, covered: tuple[OffsetRange, ...] = (OffsetRange(0, 100),), gaps: tuple[Gap, ...] = ()
) -> ArchiveState:
    return ArchiveState(number=1, files={one.path: one for one in files}, covered={AT: covered}, gaps=gaps)


def measured(path: str, first: int, last: int, **more: int) -> Measured:
    one = Measured(path, 0, first // 10, True, first, last, last - first + 1, 5, 1000, 2000, 3, 0)
    return one._replace(**more)


def texts(findings: object) -> list[str]:
    return [line(finding) for finding in findings]  # type: ignore[attr-defined]


def test_ranges() -> None:
    assert merged([OffsetRange(5, 7), OffsetRange(0, 2), OffsetRange(2, 3), OffsetRange(6, 9), OffsetRange(4, 4)]) == (
        OffsetRange(0, 3),
        OffsetRange(5, 9),
    )
    assert minus([OffsetRange(0, 10)], [OffsetRange(2, 3), OffsetRange(8, 20)]) == (
        OffsetRange(0, 2),
        OffsetRange(3, 8),
    )
    assert minus([OffsetRange(0, 3), OffsetRange(5, 6)], [OffsetRange(0, 6)]) == ()
    assert common([OffsetRange(0, 10), OffsetRange(20, 30)], [OffsetRange(5, 25)]) == (
        OffsetRange(5, 10),
        OffsetRange(20, 25),
    )
    assert as_spans([4, 1, 2, 9]) == (OffsetRange(1, 3), OffsetRange(4, 5), OffsetRange(9, 10))


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([OffsetRange(17, 18)], "offset 17"),
        ([OffsetRange(3, 4), OffsetRange(10, 20)], "offsets 3, 10 to 19"),
        (
            [OffsetRange(n * 2, n * 2 + 1) for n in range(13)],
            "offsets 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 3 more ranges",
        ),
    ],
)
def test_offsets_are_told_in_words(spans: list[OffsetRange], text: str) -> None:
    assert offsets_text(spans) == text


def test_a_finding_says_where() -> None:
    assert (
        line(difference("rows", "few", AT, "a.parquet", [OffsetRange(1, 2)])) == "rows: a.parquet (t-0): few: offset 1"
    )
    assert line(difference("hole", "odd", AT)) == "hole: t-0: odd"
    assert line(note("retention", "gone", topic="t")) == "retention: t: gone"
    assert line(note("more", "there is more")) == "more: there is more"


def test_a_sound_manifest_has_nothing_against_itself() -> None:
    gaps = (Gap("t", 0, 50, 60, "retention"),)
    sound = state(
        file("a", part(0, 49)),
        file("b", part(60, 90, rows=3)),
        covered=(OffsetRange(0, 50), OffsetRange(60, 100)),
        gaps=gaps,
    )
    assert texts(verification_rules.layout(sound, Scope())) == []


def test_a_hole_without_a_gap_and_rows_outside_are_told() -> None:
    odd = state(
        file("a", part(0, 55)),
        file("b", part(60, 62, rows=9)),
        replace_path(file("c", part(70, 70)), "topic=other/date=2026-01-01/c.parquet"),
        covered=(OffsetRange(0, 50), OffsetRange(60, 80), OffsetRange(90, 95)),
        gaps=(Gap("t", 0, 50, 55, "retention"),),
    )
    assert texts(verification_rules.layout(odd, Scope())) == [
        f"layout: topic=t/date={DAY}/a.parquet (t-0): is said to have rows that no commit covers: offsets 50 to 55",
        f"layout: topic=t/date={DAY}/b.parquet (t-0): is said to have 9 rows: offsets 60 to 62",
        "layout: topic=other/date=2026-01-01/c.parquet: is said to hold t of 2026-01-01",
        "hole: t-0: no commit covers them, and no gap tells why: offsets 55 to 59, 80 to 89",
    ]
    assert texts(verification_rules.layout(odd, Scope(topics=frozenset({"other"})))) == []


def replace_path(one: DataFile, path: str) -> DataFile:
    return one._replace(path=path)


def test_a_scope_takes_files_by_topic_date_offsets_and_times() -> None:
    one = file("a", part(10, 19), part(50, 59, partition=1))
    assert Scope().has_file(one)
    assert not Scope(topics=frozenset({"u"})).has_file(one)
    assert not Scope(dates=frozenset({"2026-01-02"})).has_file(one)
    assert [Scope(offsets=OffsetRange(*span)).has_file(one) for span in ((0, 10), (0, 11), (20, 50), (59, 99))] == [
        False, True, False, True
    ]  # fmt: skip
    assert [Scope(times=OffsetRange(*span)).has_file(one) for span in ((0, 1000), (2000, 2001), (2001, 9999))] == [
        False, True, False
    ]  # fmt: skip


def test_what_was_counted_in_buckets_adds_up_to_parts() -> None:
    found = verification_rules.parts(
        [measured("a", 0, 9), measured("a", 10, 12, checksum=5, from_ms=500), measured("b", 3, 3)]
    )
    assert found == {
        "a": (PartitionStats(0, 0, 12, 13, 10, 500, 2000, 3 ^ 5),),
        "b": (PartitionStats(0, 3, 3, 1, 5, 1000, 2000, 3),),
    }


def test_rows_other_than_committed_are_told_by_partition() -> None:
    one = file("a", part(0, 9), part(0, 4, partition=1), part(5, 6, partition=3))
    found = [part(0, 9), part(0, 4, rows=6, partition=1, checksum=8), part(7, 7, partition=2)]
    assert texts(verification_rules.rows(one, found)) == [
        f"rows: {one.path} (t-1): 6 rows instead of 5; checksum 0000000000000008 instead of 0000000000000007: "
        "offsets 0 to 4",
        f"rows: {one.path} (t-2): 1 rows of a partition that was not committed with it: offset 7",
        f"rows: {one.path} (t-3): none of the 2 rows that were committed: offsets 5 to 6",
    ]


def test_only_a_part_without_holes_tells_what_it_lost() -> None:
    assert verification_rules.lost(part(0, 9), [OffsetRange(0, 4), OffsetRange(5, 10)]) == (OffsetRange(4, 5),)
    assert verification_rules.lost(part(0, 9, rows=9), [OffsetRange(0, 4), OffsetRange(5, 10)]) == ()


def test_rows_that_no_commit_covers_are_suspected_by_their_range() -> None:
    one = file("a", part(0, 200))
    inside, across, beyond = measured(one.path, 0, 49), measured(one.path, 45, 65), measured(one.path, 99, 100)
    split = state(one, covered=(OffsetRange(0, 50), OffsetRange(60, 100)))
    assert verification_rules.suspicious([inside, across, beyond], split) == [across, beyond]


def test_rows_of_another_day_are_told_by_file() -> None:
    one = file("a", part(0, 20))
    odd = [measured(one.path, 0, 9, misdated=2), measured(one.path, 10, 19), measured(one.path, 20, 20, misdated=1)]
    assert texts(verification_rules.misdated(odd, state(one))) == [
        f"date: {one.path} (t-0): 3 rows are not of {DAY} (UTC), among: offsets 0 to 9, 20"
    ]


def test_buckets_of_both_sides_are_compared_by_count_and_checksum() -> None:
    one, other = file("a", part(0, 29)), file("b", part(0, 29))
    rows = [measured(one.path, 0, 4), measured(other.path, 5, 9, checksum=4), measured(one.path, 10, 19)]
    aside = measured(one.path, 20, 29)._replace(is_compared=False)
    ours = verification_rules.sums([*rows, aside], state(one, other).files)
    assert ours == {(AT, 0): Sum(10, 3 ^ 4), (AT, 1): Sum(10, 3)}
    same = {(AT, 0): Sum(10, 7), (AT, 1): Sum(10, 3)}
    assert verification_rules.unequal(ours, same) == {}
    # A record that is there three times has the checksum of one that is there once.
    assert verification_rules.unequal(ours, {**same, (AT, 1): Sum(12, 3)}) == {AT: [1]}
    assert verification_rules.unequal(ours, {(AT, 1): Sum(10, 3), (AT, 4): Sum(1, 1)}) == {AT: [0, 4]}


def test_compared_is_what_the_archive_covers_and_the_broker_still_has() -> None:
    archive = ArchiveState(
        covered={AT: (OffsetRange(0, 50), OffsetRange(60, 100)), TopicPartition("u", 0): (OffsetRange(0, 10),)}
    )
    ends = {AT: 80, TopicPartition("u", 0): 10}
    found = verification_rules.comparable(archive, Scope(), {AT: 20, TopicPartition("u", 0): 10}, ends)
    assert found == {AT: (OffsetRange(20, 50), OffsetRange(60, 80))}
    some = Scope(offsets=OffsetRange(40, 62))
    assert verification_rules.comparable(archive, some, {AT: 20}, ends) == {
        AT: (OffsetRange(40, 50), OffsetRange(60, 62))
    }


# The manifest.


@pytest.fixture
def chain(tmp_path: Path) -> LocalStorage:
    """Commits 0 to 5 with a folded state after 3: each but the first adds a file of ten offsets."""
    storage = LocalStorage(str(tmp_path))
    digest, now = "", ArchiveState()
    for number in range(6):
        commit = ManifestCommit("create", 1, settings={"format": "kbroker-archive", "format_version": 1})
        if number:
            add = file(f"0123456789ab-0000{number}", part(number * 10, number * 10 + 9))
            commit = ManifestCommit(
                "append", number, add=(add,), covered=(CoveredRange("t", 0, number * 10, number * 10 + 10),)
            )
        data = manifest.encode_commit(number, commit, digest)
        _, _, digest = manifest.decode_commit(data, number, "")
        storage.create(manifest.commit_path(number), data)
        now = apply_commits(now, [(number, commit)])
        if number == 3:
            storage.create(manifest.state_path(3), manifest.encode_state(now, digest))
    return storage


def edited(storage: LocalStorage, path: str, change: Callable[[bytes], bytes]) -> None:
    storage.replace(path, change(storage.read(path)))


def told(storage: LocalStorage) -> tuple[list[str], int]:
    """The findings, and how many files the state has that was made of it all."""
    found = verification_chain.read(storage)
    return texts(found.findings), len(found.state.files)


def test_a_whole_manifest_gives_its_state(chain: LocalStorage) -> None:
    found = verification_chain.read(chain)
    assert found.findings == []
    assert found.state.number == 5
    assert found.state.covered == {AT: (OffsetRange(10, 60),)}


def test_a_history_that_was_folded_away_is_no_difference(chain: LocalStorage) -> None:
    for number in range(3):
        chain.delete(manifest.commit_path(number))
    assert told(chain) == ([], 5)
    chain.delete(manifest.commit_path(3))
    assert told(chain) == ([], 5)
    chain.delete(manifest.state_path(3))
    assert told(chain) == ([f"manifest: {manifest.commit_path(0)}: commits 0 to 3 are not there"], 2)


def test_missing_commits_are_named_and_the_folded_state_makes_up_for_them(chain: LocalStorage) -> None:
    chain.delete(manifest.commit_path(2))
    assert told(chain) == ([f"manifest: {manifest.commit_path(2)}: commit 2 is not there"], 5)
    chain.delete(manifest.commit_path(4))
    assert told(chain) == (
        [
            f"manifest: {manifest.commit_path(2)}: commit 2 is not there",
            f"manifest: {manifest.commit_path(4)}: commit 4 is not there",
        ],
        4,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"rows":10', b'"rows":11'),
        lambda data: data[:40],
        lambda data: b"",
        lambda data: b"\xff" + data,
        lambda data: b"[]",
    ],
    ids=["edited", "cut", "emptied", "binary", "something else"],
)
@pytest.mark.parametrize("path", [manifest.commit_path(1), manifest.commit_path(5), manifest.state_path(3)])
def test_a_damaged_file_of_the_manifest_is_named(
    chain: LocalStorage, path: str, change: Callable[[bytes], bytes]
) -> None:
    edited(chain, path, change)
    findings, files = told(chain)
    assert [finding.split(": ")[:2] for finding in findings] == [["manifest", path]]
    assert files == (4 if path == manifest.commit_path(5) else 5)


def test_a_commit_of_another_history_is_told(chain: LocalStorage) -> None:
    other = ManifestCommit("append", 2, covered=(CoveredRange("t", 0, 20, 30),))
    chain.replace(manifest.commit_path(2), manifest.encode_commit(2, other, "0" * 64))
    findings, _ = told(chain)
    assert findings == [
        f"manifest: {manifest.commit_path(2)}: was made after another commit 1 than the one that is there",
        f"manifest: {manifest.commit_path(3)}: was made after another commit 2 than the one that is there",
        f"manifest: {manifest.state_path(3)}: is not what the commits up to 3 make",
    ]


def test_a_commit_that_covers_offsets_twice_is_told_and_taken_over(chain: LocalStorage) -> None:
    _, _, digest = manifest.decode_commit(chain.read(manifest.commit_path(5)), 5, "")
    again = ManifestCommit("append", 6, covered=(CoveredRange("t", 0, 55, 70),))
    chain.create(manifest.commit_path(6), manifest.encode_commit(6, again, digest))
    found = verification_chain.read(chain)
    assert texts(found.findings) == [
        f"manifest: {manifest.commit_path(6)}: t-0: offsets from 55 are archived already, up to 60"
    ]
    assert found.state.covered == {AT: (OffsetRange(10, 70),)}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("path_of", [manifest.commit_path, manifest.state_path])
def test_a_file_of_a_far_number_is_named(chain: LocalStorage, path_of: Callable[[int], str]) -> None:
    far = 10**19
    chain.create(path_of(far), chain.read(path_of(3)))
    assert told(chain) == (
        [
            f"manifest: {path_of(far)}: damaged, or no file of an archive's manifest "
            f"({'state' if path_of is manifest.state_path else 'append'!r}"
            f"{' ' if path_of is manifest.state_path else ' commit '}3 in the place of "
            f"{'state' if path_of is manifest.state_path else 'commit'} {far})",
            f"manifest: {manifest.commit_path(6)}: commits 6 to {far - 1} are not there",
        ],
        5,
    )


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["FIFO", "directory", "socket", "device", "round", "huge"])
@pytest.mark.parametrize("path", [manifest.commit_path(5), manifest.state_path(3)])
def test_what_is_no_file_of_a_manifest_is_named(chain: LocalStorage, path: str, kind: str) -> None:
    where = Path(chain.root, path)
    where.unlink()
    if kind == "FIFO":
        os.mkfifo(where)
    elif kind == "directory":
        where.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(where))
    elif kind == "device":
        where.symlink_to("/dev/zero")
    elif kind == "round":
        where.symlink_to(where)
    else:
        where.touch()
        os.truncate(where, 1 << 40)
    huge = f"damaged, or no file of an archive's manifest ({1 << 40} bytes, and its checksum is another)"
    what = {"huge": huge, "round": ""}.get(kind, f"is a {kind}")
    assert told(chain) == ([f"manifest: {path}: {what}"] if what else [], 4 if "state" not in path else 5)


# Spark's list of the files.


def test_an_archive_that_was_moved_is_told_as_such(tmp_path: Path) -> None:
    archive = created(LocalStorage(str(tmp_path / "here")))
    append(archive)
    assert verification_files.view(archive.storage, archive.state()) == []
    (tmp_path / "here").rename(tmp_path / "there")
    moved = Archive.open(LocalStorage(str(tmp_path / "there")))
    (found,) = verification_files.view(moved.storage, moved.state())
    assert "since the archive was moved or copied: `kbroker archive compact` mends it" in line(found)
    moved.refresh_view()
    assert verification_files.view(moved.storage, moved.state()) == []


@pytest.mark.timeout(30)
def test_a_list_that_spark_cannot_read_is_told(tmp_path: Path) -> None:
    archive = created(LocalStorage(str(tmp_path)))
    append(archive)
    latest = max((tmp_path / "_spark_metadata").iterdir(), key=lambda path: int(path.name.partition(".")[0]))

    def what() -> str:
        (found,) = verification_files.view(archive.storage, archive.state())
        return found.what

    latest.write_bytes(b"v1\n")
    os.truncate(latest, 1 << 40)
    assert what() == f"_spark_metadata/{latest.name}: has a line of more than 65536 bytes"
    latest.unlink()
    os.mkfifo(latest)
    assert what() == f"{latest}: is a FIFO"


# Files beside the committed ones.


def test_files_that_no_commit_names_are_foreign_or_left_over(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    committed = file(f"{'a' * 12}-00000", part(0, 9))
    alive = "b" * 12
    storage.create(owner.owner_path(alive), b"{}")
    writers = verification_files.writers(storage)
    names = [f"{'a' * 12}-00007", "part-0", f"{'c' * 12}-00000", f"{alive}-00000", f"{'d' * 12}-00000"]
    listed = [committed.path, *(file(name).path for name in names)]
    removed = {file(f"{'d' * 12}-00000").path}
    foreign, notes = verification_files.strangers(listed, writers, state(committed), removed)
    assert foreign == [file(f"{'a' * 12}-00007").path, file("part-0").path, file(f"{'c' * 12}-00000").path]
    assert [(one.file, one.is_difference) for one in notes] == [(file(f"{'d' * 12}-00000").path, False)]
