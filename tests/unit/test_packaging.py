"""The extras of pyproject.toml install what is needed, and no text names a package that no registry has."""

import re
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kbroker.common import install_command

ROOT = Path(__file__).parents[2]
PYPROJECT = ROOT / "pyproject.toml"


def installed_by(requirement: Requirement) -> set[str]:
    """Return the names of a distribution and of what its requested extras require."""
    environments = [{"extra": extra} for extra in requirement.extras]
    extra_requirements = [Requirement(text) for text in requires(requirement.name) or () if requirement.extras]
    return {requirement.name} | {
        row.name
        for row in extra_requirements
        if row.marker is not None and any(row.marker.evaluate(environment) for environment in environments)
    }


def test_the_extra_spark_installs_pandas_for_map_in_arrow() -> None:
    """PySpark does not require pandas, but mapInArrow, which `kbroker replay` uses, fails without it."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    names = set().union(*(installed_by(Requirement(text)) for text in extras["spark"]))
    assert {"matplotlib", "pandas", "pyarrow", "pyspark"} <= names


@pytest.mark.parametrize("extra", ["archive", "console", "oauth", "otel", "secure", "spark"])
def test_messages_name_the_packages_of_an_extra(extra: str) -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    command = install_command(extra)
    assert all(Requirement(text).name in command for text in extras[extra])
    assert "kbroker" not in command


def test_no_text_says_to_install_kbroker_from_a_registry() -> None:
    """No registry has the name, and anybody could register it."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = re.compile(r"pip3? install (?:-\S+ )*['\"]?kbroker\b(?!-)")
    found = [
        name
        for name in tracked.split("\0")
        if name.endswith((".py", ".md", ".toml", ".yaml", "Dockerfile")) and named.search((ROOT / name).read_text())
    ]
    assert found == []
