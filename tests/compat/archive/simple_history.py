"""A stand-in of the history process."""

import os

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.archive.catalogs import open_archive
from kbroker.archive.errors import ArchiveError
from kbroker.replica.history.frames import FrameAssembler, encode_frame
from protocol.records.batch import build_batch

ROWS: dict = {}


def table_of(request):
    return open_archive(request["archive"]).table(request["topic"])


def rows(request):
    key = request["archive"], request["topic"], request["partition"]
    table = table_of(request)
    if ROWS.get(key, (None,))[0] != table.state.commit:
        files = [f for f in table.files() if f.partition == request["partition"]]
        read = pa.concat_tables([pq.ParquetFile(f.path.removeprefix("file://")).read() for f in files])
        found = read.sort_by("offset").to_pylist()
        ROWS[key] = table.state.commit, found, files
    for f in ROWS[key][2]:
        if not os.path.exists(f.path.removeprefix("file://")):
            raise FileNotFoundError(f.path)
    return ROWS[key][1]


def record(row):
    headers = tuple((h["key"].encode(), h["value"]) for h in row["headers"] or ())
    return int(row["timestamp"].timestamp() * 1000 + 0.5), row["key"], row["value"], headers


def respond(request):
    call = request["call"]
    if call == "bounds":
        table = table_of(request)
        ends = table.state.resume_offsets()
        starts = {}
        for f in table.files():
            starts[f.partition] = min(f.first, starts.get(f.partition, f.first))
        parts = {str(p): {"start": s, "end": ends[p]} for p, s in starts.items()}
        return {
            "topic_id": table.state.topic.topic_id if table.state.topic else "",
            "committed_only": True,
            "commit_ms": 0,
            "partitions": parts,
        }, b""
    if call == "offset_for_time":
        for row in rows(request):
            if record(row)[0] >= request["timestamp"]:
                return {"offset": row["offset"], "found_timestamp": record(row)[0], "leader_epoch": 0}, b""
        return {"offset": -1}, b""
    out, next_offset = b"", request["end"]
    wanted = [row for row in rows(request) if request["offset"] <= row["offset"] < request["end"]]
    for start in range(0, len(wanted), 100):
        part = wanted[start : start + 100]
        batch = build_batch([record(row) for row in part], base_offset=part[0]["offset"], leader_epoch=0)
        if out and len(out) + len(batch) > request["max_bytes"]:
            next_offset = part[0]["offset"]
            break
        out += batch
    return {"next_offset": next_offset}, out


def main():
    frames = FrameAssembler()
    while data := os.read(0, 1 << 16):
        for frame in frames.feed(data):
            try:
                header, body = respond(frame.header)
            except ArchiveError as error:
                header, body = {"error": str(error), "kind": "absent"}, b""
            except Exception as error:
                header, body = {"error": repr(error), "kind": "damaged"}, b""
            out = encode_frame({"id": frame.header["id"], **header}, body)
            while out:
                out = out[os.write(1, out) :]


main()
