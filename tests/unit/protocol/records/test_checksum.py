"""The checksum is that of the package, loaded without the package."""

import subprocess
import sys
from importlib.machinery import PathFinder

import crc32c as package
import pytest

from protocol.records import checksum


def test_values() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(memoryview(b"6789"), checksum.crc32c(b"12345")) == 0xE3069283
    assert checksum.crc32c(b"") == 0


def test_the_package_is_not_imported() -> None:
    code = "import sys, protocol.records.batch; print('crc32c' in sys.modules, 'importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_package_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PathFinder, "find_spec", lambda name: None)
    assert checksum.load_crc32c() is package.crc32c
