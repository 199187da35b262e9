"""What Apache Kafka answered, in a file that people can read: one line for each field of an answer.

{"versions": {"Heartbeat": "0-4", ...},
 "answers": {"Heartbeat": {"a member": {"error_code": {"0-4": "NONE"}, ...}, ...}, ...}}
"""

import json
from pathlib import Path
from typing import Any

ANSWERS_FILE = Path(__file__).with_name("kafka-4.3.1-answers.json")
FRAMES_FILE = Path(__file__).with_name("kafka-4.3.1-frames.json")

Steps = dict[str, dict[str, Any]]  # step: path: value, in one version


class Golden:
    """Recorded answers by API and version."""

    def __init__(self) -> None:
        self.versions: dict[str, tuple[int, int]] = {}
        self._answers: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}

    def add(self, api: str, version: int, steps: Steps) -> None:
        first, last = self.versions.get(api, (version, version))
        self.versions[api] = (min(first, version), max(last, version))
        fields = self._answers.setdefault(api, {})
        for step, answer in steps.items():
            for path, value in answer.items():
                fields.setdefault(step, {}).setdefault(path, {})[str(version)] = value

    def forget(self, api: str) -> None:
        self.versions.pop(api, None)
        self._answers.pop(api, None)

    def steps(self, api: str, version: int) -> Steps:
        """What was answered in one version."""
        found: Steps = {}
        for step, paths in self._answers.get(api, {}).items():
            for path, by_version in paths.items():
                if str(version) in by_version:
                    found.setdefault(step, {})[path] = by_version[str(version)]
        return found

    def save(self, file: Path) -> None:
        lines = ['{"versions": {']
        versions = [f'  "{api}": "{first}-{last}"' for api, (first, last) in sorted(self.versions.items())]
        lines.append(",\n".join(versions))
        lines.append('},\n"answers": {')
        apis = []
        for api, steps in sorted(self._answers.items()):
            told = [f"  {json.dumps(step)}: {{\n{self._paths(paths)}\n  }}" for step, paths in steps.items()]
            apis.append(f" {json.dumps(api)}: {{\n" + ",\n".join(told) + "\n }")
        lines.append(",\n".join(apis))
        lines.append("}}")
        file.write_text("\n".join(lines) + "\n")

    def _paths(self, paths: dict[str, dict[str, Any]]) -> str:
        rows = ((path, json.dumps(_ranged(by_version), ensure_ascii=False)) for path, by_version in paths.items())
        return ",\n".join(f"    {json.dumps(path)}: {told}" for path, told in sorted(rows))

    @classmethod
    def load(cls, file: Path) -> "Golden":
        golden = cls()
        stored = json.loads(file.read_text())
        for api, versions in stored["versions"].items():
            golden.versions[api] = _bounds(versions)
        for api, steps in stored["answers"].items():
            golden._answers[api] = {
                step: {path: _spread(ranges) for path, ranges in paths.items()} for step, paths in steps.items()
            }
        return golden


def _ranged(by_version: dict[str, Any]) -> dict[str, Any]:
    """{"0": a, "1": a, "2": b} as {"0-1": a, "2": b}."""
    found: list[tuple[int, int, Any]] = []
    for version in sorted(map(int, by_version)):
        value = by_version[str(version)]
        if found and found[-1][1] == version - 1 and found[-1][2] == value:
            found[-1] = (found[-1][0], version, value)
        else:
            found.append((version, version, value))
    return {f"{first}-{last}" if first < last else str(first): value for first, last, value in found}


def _spread(ranges: dict[str, Any]) -> dict[str, Any]:
    return {
        str(version): value
        for text, value in ranges.items()
        for version in range(_bounds(text)[0], _bounds(text)[1] + 1)
    }


def _bounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
