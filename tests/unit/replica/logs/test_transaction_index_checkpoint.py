"""transaction-index-checkpoint, without which a start would not notice that a transaction index is lost."""

import json

import pytest

from kbroker.replica.logs.checkpoints import CheckpointFiles
from kbroker.storage.file_names import CLEAN_SHUTDOWN, RECOVERY_POINTS, TRANSACTION_INDEXES
from tests.unit.support.simulated_broker import Machine, broker_test

PATH, CLEAN = f"/data/{TRANSACTION_INDEXES}", f"/data/{CLEAN_SHUTDOWN}"


def is_known(m: Machine) -> bool:
    """Return whether the next start knows how many entries the transaction indexes have."""
    files = CheckpointFiles(m.broker.environment, "/data", lambda: (_ for _ in ()), dict)
    return files.load_blocking().checkpoints.transaction_indexes is not None


@broker_test
async def test_it_exists_from_the_first_start_on_and_is_written_before_the_recovery_points(m: Machine) -> None:
    assert m.disk.data(PATH) == b"0\n0\n"
    written = []
    real = m.disk.write_atomic

    def noting(path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        written.append(path)
        real(path, data, sync=sync)

    m.disk.write_atomic = noting  # type: ignore[method-assign]
    m.broker.services.replicas.logs._checkpoints._transaction_indexes = b"others"
    await m.broker.services.replicas.logs.write_checkpoints()
    assert written.index(PATH) < written.index(f"/data/{RECOVERY_POINTS}")
    # It is written again only when it changes.
    written.clear()
    await m.broker.services.replicas.logs.write_checkpoints()
    assert PATH not in written


@pytest.mark.parametrize("damage", [None, b"", b"0\n7\n"], ids=["gone", "empty", "cut"])
@broker_test
async def test_a_lost_one_is_unknown_and_not_empty(m: Machine, damage: bytes | None) -> None:
    await m.stop()
    m.disk = m.disk.after_crash()
    m.broker.environment.disk = m.disk
    if damage is None:
        m.disk.unlink(PATH)
    else:
        m.disk.data(PATH)[:] = damage
    assert not is_known(m)


@broker_test
async def test_a_former_version_that_stopped_cleanly_has_left_none(m: Machine) -> None:
    """So an upgrade reads no log. After a kill it cannot be distinguished from a loss."""
    await m.stop()
    m.disk = m.disk.after_crash()
    m.broker.environment.disk = m.disk
    m.disk.unlink(PATH)
    m.disk.data(CLEAN)[:] = json.dumps({"version": 0, "brokerEpoch": 5}).encode()
    assert is_known(m)
    # The first look has consumed the file.
    assert not is_known(m)
