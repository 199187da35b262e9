"""A leader's batches are checked before they are appended."""

import pytest

from kbroker.replica.fetcher.replica_fetch_session import CorruptBatchesError, check_batches
from tests.unit.support.log_lab import batch


def received(*batches: bytes, damage: int | None = None) -> memoryview:
    data = bytearray(b"".join(batches))
    if damage is not None:
        data[damage] ^= 1
    return memoryview(data)


def test_batches_with_gaps_and_several_epochs() -> None:
    records = received(
        batch(3, base_offset=10, leader_epoch=2), batch(1, base_offset=13, leader_epoch=2),
        batch(2, base_offset=20, leader_epoch=5),
    )  # fmt: skip
    headers = check_batches(records, 10, 5)
    assert [(header.base_offset, header.next_offset, header.leader_epoch) for header in headers] == [
        (10, 13, 2),
        (13, 14, 2),
        (20, 22, 5),
    ]


def test_an_incomplete_batch_at_the_end_is_ignored() -> None:
    whole, cut = batch(1, base_offset=0, leader_epoch=0), batch(1, base_offset=1, leader_epoch=0)
    headers = check_batches(received(whole, cut[:-1]), 0, 0)
    assert [header.size for header in headers] == [len(whole)]


def test_no_batches() -> None:
    assert check_batches(memoryview(b""), 5, 1) == []


@pytest.mark.parametrize("damage", [8, 16, 17, 21, 43, 70])
def test_a_damaged_byte(damage: int) -> None:
    with pytest.raises(CorruptBatchesError):
        check_batches(received(batch(2, leader_epoch=0, producer_id=5), damage=damage), 0, 0)


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([batch(1, base_offset=4, leader_epoch=1)], id="below the fetch offset"),
        pytest.param([batch(2, base_offset=5, leader_epoch=1), batch(1, base_offset=6, leader_epoch=1)], id="overlap"),
        pytest.param([batch(1, base_offset=5, leader_epoch=4)], id="an epoch after the leader's"),
        pytest.param(
            [batch(1, base_offset=5, leader_epoch=3), batch(1, base_offset=6, leader_epoch=2)], id="decreasing epochs"
        ),
        pytest.param([batch(1, base_offset=5, leader_epoch=1)[:-1]], id="nothing complete"),
    ],
)
def test_batches_that_do_not_belong_here(batches: list[bytes]) -> None:
    with pytest.raises(CorruptBatchesError):
        check_batches(received(*batches), 5, 3)
