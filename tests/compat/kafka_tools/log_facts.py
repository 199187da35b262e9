"""Converts the output of DumpLogSegments and of `kbroker log dump --json` to the same tuples."""

import re

PAIR = re.compile(r"(\w+): (\S+)")
BATCH = (
    ("baseOffset", "base_offset"),
    ("lastOffset", "last_offset"),
    ("count", "count"),
    ("baseSequence", "base_sequence"),
    ("lastSequence", "last_sequence"),
    ("producerId", "producer_id"),
    ("producerEpoch", "producer_epoch"),
    ("partitionLeaderEpoch", "leader_epoch"),
    ("isTransactional", "transactional"),
    ("isControl", "control"),
    ("position", "position"),
    ("size", "size"),
    ("crc", "crc"),
    ("isvalid", "valid"),
)
PRODUCER = (
    ("producerId", "producer_id"),
    ("producerEpoch", "producer_epoch"),
    ("coordinatorEpoch", "coordinator_epoch"),
    ("lastTimestamp", "last_timestamp"),
    ("lastSequence", "last_sequence"),
    ("lastOffset", "last_offset"),
    ("offsetDelta", "offset_delta"),
)


def facts_of_kafka(text):
    """Return the tuples of DumpLogSegments in order; those of records need --deep-iteration."""
    facts = []
    for line in text.splitlines():
        pairs = dict(PAIR.findall(line))
        if line.startswith("baseOffset:"):
            codec = pairs["compresscodec"].replace("none", "uncompressed")
            facts.append(("batch", *(pairs[name] for name, _ in BATCH), codec, _time(pairs)))
        elif line.startswith("| offset:"):
            facts.append(("record", pairs["offset"], _time(pairs), pairs["keySize"], pairs["valueSize"]))
        elif line.startswith("offset:"):
            facts.append(("index", pairs["offset"], pairs["position"]))
        elif line.startswith("timestamp:"):
            facts.append(("time index", pairs["timestamp"], pairs["offset"]))
        elif line.startswith("producerId:"):
            # A producer whose transaction has just ended has no last batch.
            last = {"lastSequence": "-1", "lastOffset": "-1", "offsetDelta": "0", **pairs}
            facts.append(("producer", *(last[name] for name, _ in PRODUCER)))
    return facts


def _time(pairs):
    return pairs["LogAppendTime"] if "LogAppendTime" in pairs else pairs["CreateTime"]


def facts_of_kbroker(items):
    """Return the tuples of the items of `kbroker log dump --json` in order."""
    facts = []
    for item in items:
        match item["item"]:
            case "batch":
                fields = (_text(item[name]) for _, name in BATCH)
                facts.append(("batch", *fields, item["codec"], str(item["max_timestamp"])))
            case "record":
                names = ("offset", "timestamp", "key_size", "value_size")
                facts.append(("record", *(_text(item[name]) for name in names)))
            case "entry" if "position" in item:
                facts.append(("index", str(item["offset"]), str(item["position"])))
            case "entry":
                facts.append(("time index", str(item["timestamp"]), str(item["offset"])))
            case "producer":
                facts.append(("producer", *(str(item[name]) for _, name in PRODUCER)))
            case "damage":
                facts.append(("damage", str(item)))
    return facts


def _text(value):
    if value is None:
        return "-1"
    return str(value).lower() if isinstance(value, bool) else str(value)
