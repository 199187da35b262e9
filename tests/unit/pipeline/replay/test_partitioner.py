"""Kafka's default partitioner."""

import os

import pytest

from kbroker.pipeline.replay.partitioner import murmur2


def test_murmur2_equals_kafka_pythons():
    partitioner = pytest.importorskip("kafka.partitioner.default")
    for size in range(40):
        key = os.urandom(size)
        assert murmur2(key) == partitioner.murmur2(key) & 0xFFFFFFFF
