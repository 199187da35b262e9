"""The journal and the snapshot of the embedded coordination service as dump items."""

import struct
from collections.abc import Iterator

from kbroker.cli.log.items import DumpFile, DumpItem, DumpSelection, Fields, damage_item
from kbroker.cli.records.formats import bytes_to_json
from kbroker.coordination import journal
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.storage.inspect.batches import Damage


def read_journal(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    """Yield one item for each operation, and one for each damaged place."""
    data = source.read()
    position = 0
    while position < len(data):
        payload = journal.unframe(data, position)
        if payload is None:
            reason = "a record that is truncated or has a wrong CRC"
            try:
                end = journal.next_record(data, position + 1)
            except ValueError as error:
                end, reason = len(data), str(error)
            yield damage_item(Damage(position, end - position, None, reason))
            position = end
            continue
        try:
            number = journal.NUMBER.unpack_from(payload)[0]
            for op in journal.decode_ops(payload, journal.NUMBER.size):
                yield DumpItem("change", {"position": position, "number": number, **_op_fields(op)}, position)
        except (ValueError, struct.error) as error:
            yield damage_item(Damage(position, len(payload), None, f"a record that cannot be decoded: {error}"))
        position += journal.FRAME.size + len(payload)


def _op_fields(op: Op) -> Fields:
    match op:
        case Create(path=path, data=data):
            return {"op": "create", "path": path, **bytes_to_json("data", data)}
        case Set(path=path, data=data):
            return {"op": "set", "path": path, **bytes_to_json("data", data)}
        case Delete(path=path):
            return {"op": "delete", "path": path}
    return {"op": type(op).__name__.lower(), "path": op.path}


def read_snapshot(source: DumpFile, selection: DumpSelection) -> Iterator[DumpItem]:
    """Yield one item for each node, or one for the damage."""
    from kbroker.coordination.data_tree import DataTree

    data = source.read()
    tree = DataTree()
    try:
        number = journal.load_snapshot(data, tree)
    except (journal.JournalCorrupted, ValueError, KeyError, struct.error) as error:
        yield damage_item(Damage(0, len(data), None, str(error)))
        return
    for path, node in tree.persistent():
        fields = {"number": number, "path": path, "version": node.version, **bytes_to_json("data", node.data)}
        yield DumpItem("node", fields)
