"""Durations and sizes of configs."""

import pytest

from kbroker.units import config_number


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "1h30m", "5400000"),
        ("retention.ms", "P1DT2H", "93600000"),
        ("retention.ms", " 250ms ", "250"),
        ("retention.ms", "2w", "1209600000"),
        ("log.retention.hours", "3d", "72"),
        ("offsets.retention.minutes", "7d", "10080"),
        ("quota.window.size.seconds", "1m", "60"),
        ("kbroker.retry.delays.ms", "10s,1m,5", "10000,60000,5"),
        ("listener.name.internal.connections.max.reauth.ms", "1h", "3600000"),
        ("segment.bytes", "64MiB", "67108864"),
        ("segment.bytes", "1.5g", "1610612736"),
        ("segment.bytes", "1kB", "1024"),
        ("log.cleaner.io.max.bytes.per.second", "20 MiB", "20971520"),
        ("log.cleaner.dedupe.buffer.size", "128MiB", "134217728"),
        ("leader.replication.throttled.rate", "1MiB", "1048576"),
        # In the unit of the config.
        ("segment.bytes", "64m", "67108864"),
        ("segment.ms", "64m", "3840000"),
    ],
)
def test_units(name: str, text: str, number: str) -> None:
    assert config_number(name, text) == number
    assert config_number(name, number) == number


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", " 5"),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308"),
        ("num.partitions", "5d"),
        ("compression.type", "5d"),
        ("cleanup.policy", "compact,delete"),
    ],
)
def test_other_texts_are_for_the_broker_to_judge(name: str, text: str) -> None:
    assert config_number(name, text) == text


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "5MiB", "retention.ms is a time in milliseconds: .*7d, not '5MiB'"),
        ("retention.ms", "5 d", "not '5 d'"),
        ("retention.ms", "1_000", "not '1_000'"),
        ("segment.bytes", "5d", "segment.bytes is a size in bytes: .*64MiB, not '5d'"),
        ("log.retention.hours", "90m", "log.retention.hours is a time in hours: "),
        ("retention.ms", "9" * 10_000 + "d", "time in milliseconds"),
    ],
)
def test_another_unit_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        config_number(name, text)
