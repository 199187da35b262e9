"""A compacted partition's files, as Kafka's own DumpLogSegments reads them."""

import re
from pathlib import Path

from protocol.records.batch import iter_headers
from tests.compat.compaction.bulk import Record
from tests.compat.kafka_tools.jvm import Jvm

# What the tool says of a compacted log without being wrong: offsets that are left out, from one record to the next and
# from one segment to the next.
COMPLAINT = re.compile(
    r"Mismatches in|out of order|Found timestamp mismatch|Index timestamp|isvalid: false"
    r"|invalid|corrupt|Exception|sanity check failed",
    re.IGNORECASE,
)
_BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) "
    r"producerId: (-?\d+) .*?deleteHorizonMs: (\S+) .*?compresscodec: (\w+)",
    re.MULTILINE,
)
_RECORD = re.compile(r"^\| offset: (\d+) ", re.MULTILINE)


# A time index's entry may lead to an emptied batch, of which only the header has the timestamp; the tool looks for it
# among the batch's records.
_NO_RECORD = re.compile(
    r"^Found timestamp mismatch in :(\S+)\.timeindex\n((?:  Index timestamp: \d+, log timestamp: -1\n?)+)", re.MULTILINE
)


def _explained(found: re.Match[str]) -> str:
    """Nothing, if an emptied batch has each of the timestamps; else the complaint as it is."""
    data = Path(f"{found[1]}.log").read_bytes()
    emptied = {header.max_timestamp for _, header in iter_headers(data) if not header.count}
    wanted = {int(timestamp) for timestamp in re.findall(r"Index timestamp: (\d+)", found[2])}
    return "" if wanted <= emptied else found[0]


def dump(jvm: Jvm, files: list[Path], *options: str) -> str:
    """What DumpLogSegments prints; fails when it complains."""
    assert files, "there are no such files"
    done = jvm.check("kafka-dump-log", "--files", ",".join(map(str, files)), *options)
    said = _NO_RECORD.sub(_explained, done.out + done.err)
    complaint = COMPLAINT.search(said)
    assert complaint is None, said[max(0, complaint.start() - 500) : complaint.end() + 500]
    return done.out


def batches(dumped: str) -> list[tuple[int, int, int]]:
    """(base offset, last offset, count) of each batch."""
    return [(int(found[1]), int(found[2]), int(found[3])) for found in _BATCH.finditer(dumped)]


def last_of_producers(dumped: str) -> dict[str, tuple[str, ...]]:
    """By producer id: last offset and sequences of its last batch."""
    return {found[6]: (found[2], found[4], found[5]) for found in _BATCH.finditer(dumped) if found[6] != "-1"}


def check_files(jvm: Jvm, directory: Path, served: list[Record]) -> str:
    """The files of a stopped broker hold what it has served, in order, each batch within its range; the indexes lead
    to it. Gives what the tool printed of the segments."""
    logs = sorted(directory.glob("*.log"))
    dumped = dump(jvm, logs, "--deep-iteration")
    ranges = batches(dumped)
    assert len(ranges) == len(re.findall(r"^baseOffset: ", dumped, re.MULTILINE))
    for (_, last, _), (base, end, count) in zip([(0, -1, 0), *ranges], ranges, strict=False):
        assert last < base <= end, "the ranges of the batches follow each other"
        assert count <= end - base + 1
    offsets = [int(offset) for offset in _RECORD.findall(dumped)]
    assert len(offsets) == sum(count for _, _, count in ranges)
    assert offsets == [record.offset for record in served]
    for suffix in (".index", ".timeindex"):
        dump(jvm, [path.with_suffix(suffix) for path in logs])
    dump(jvm, [path.with_suffix(".index") for path in logs], "--index-sanity-check")
    if snapshots := sorted(directory.glob("*.snapshot")):
        dump(jvm, snapshots)
    left = [path.name for path in directory.iterdir() if path.suffix in (".cleaned", ".swap")]
    assert left == [], "nothing of a compaction is left over"
    return dumped
