"""The size of an environment."""

from pathlib import Path

from scripts.installation import Size, size_rows, sizes


def test_the_size_of_each_package(tmp_path: Path) -> None:
    for name, size in {
        "uvloop/loop.so": 2_000_000,
        "uvloop/__pycache__/loop.pyc": 500_000,
        "uvloop-0.23.0.dist-info/RECORD": 100_000,
        "small/a.py": 10_000,
        "single.py": 20_000,
        "pip/a.py": 9_000_000,
        "pip-23.2.1.dist-info/RECORD": 9_000_000,
    }.items():
        path = tmp_path / "lib/python3.11/site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    found = sizes(tmp_path)
    assert found == {"uvloop": Size(2_100_000, 500_000), "small": Size(10_000, 0), "single.py": Size(20_000, 0)}
    assert size_rows(found) == ["| uvloop | 2.1 | 0.5 |", "| 2 others | 0.03 | 0 |", "| all | 2.13 | 0.5 |"]
