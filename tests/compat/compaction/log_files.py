"""A compacted partition's files, as Kafka's own DumpLogSegments reads them."""

import re
from pathlib import Path

from protocol.records.batch import iter_headers
from tests.compat.compaction.bulk_clients import Record
from tests.compat.kafka_tools.jvm import Jvm

# Complaints of the tool about a log. It also reports gaps between offsets, which are expected in a compacted log.
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


# An entry of the time index may point to an empty batch, whose timestamp is only in its header; the tool looks for the
# timestamp among the records.
_NO_RECORD = re.compile(
    r"^Found timestamp mismatch in :(\S+)\.timeindex\n((?:  Index timestamp: \d+, log timestamp: -1\n?)+)", re.MULTILINE
)


def _explained(match: re.Match[str]) -> str:
    """Return an empty string if an empty batch has each of the timestamps, otherwise the complaint."""
    data = Path(f"{match[1]}.log").read_bytes()
    empty_batches = {header.max_timestamp for _, header in iter_headers(data) if not header.count}
    timestamps = {int(timestamp) for timestamp in re.findall(r"Index timestamp: (\d+)", match[2])}
    return "" if timestamps <= empty_batches else match[0]


def dump(jvm: Jvm, files: list[Path], *options: str) -> str:
    """Return the output of DumpLogSegments. Fails if it complains."""
    assert files, "no such files"
    run = jvm.check("kafka-dump-log", "--files", ",".join(map(str, files)), *options)
    output = _NO_RECORD.sub(_explained, run.out + run.err)
    complaint = COMPLAINT.search(output)
    assert complaint is None, output[max(0, complaint.start() - 500) : complaint.end() + 500]
    return run.out


def batches(dumped: str) -> list[tuple[int, int, int]]:
    """Return (base offset, last offset, count) of each batch."""
    return [(int(match[1]), int(match[2]), int(match[3])) for match in _BATCH.finditer(dumped)]


def last_of_producers(dumped: str) -> dict[str, tuple[str, ...]]:
    """Return last offset and sequences of each producer's last batch, by producer id."""
    return {match[6]: (match[2], match[4], match[5]) for match in _BATCH.finditer(dumped) if match[6] != "-1"}


def check_files(jvm: Jvm, directory: Path, served: list[Record]) -> str:
    """Check that the files of a stopped broker contain the records that it served, in order, each batch within its
    range, with correct indexes. Returns the tool's output about the segments."""
    logs = sorted(directory.glob("*.log"))
    dumped = dump(jvm, logs, "--deep-iteration")
    ranges = batches(dumped)
    assert len(ranges) == len(re.findall(r"^baseOffset: ", dumped, re.MULTILINE))
    for (_, last, _), (base, end, count) in zip([(0, -1, 0), *ranges], ranges, strict=False):
        assert last < base <= end, "batches do not overlap"
        assert count <= end - base + 1
    offsets = [int(offset) for offset in _RECORD.findall(dumped)]
    assert len(offsets) == sum(count for _, _, count in ranges)
    assert offsets == [record.offset for record in served]
    for suffix in (".index", ".timeindex"):
        dump(jvm, [path.with_suffix(suffix) for path in logs])
    dump(jvm, [path.with_suffix(".index") for path in logs], "--index-sanity-check")
    if snapshots := sorted(directory.glob("*.snapshot")):
        dump(jvm, snapshots)
    leftovers = [path.name for path in directory.iterdir() if path.suffix in (".cleaned", ".swap")]
    assert leftovers == [], "no files of a compaction are left over"
    return dumped
