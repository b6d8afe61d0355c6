"""One table from a folder of reports: ``python -m benchmarks.gather FROM TO``, the last step of `gpu.sh`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from benchmarks.harness import Report


@final
@dataclass(frozen=True)
class Step:
    """One step of `gpu.sh`: its exit code, or ``left_out`` if no time was left, and its duration."""

    name: str
    code: str
    seconds: int

    @property
    def outcome(self) -> str:
        """The exit code in words."""
        reasons = {
            "0": "done",
            "124": "stopped: out of time",
            "137": "stopped: out of time",
            "left_out": "left out: no time",
        }
        return reasons.get(self.code, f"failed with code {self.code}, see log.txt")


def steps_of(folder: Path) -> list[Step]:
    """The steps that ``steps.tsv`` lists; none without the file."""
    path = folder / "steps.tsv"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Step(name, code, int(seconds)) for name, code, seconds in (line.split("\t") for line in lines)]


def reports_of(folder: Path) -> list[Report]:
    """All reports in the folder, by name; other JSON files are skipped."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Report.from_json(path.read_text()))
        except ValueError:
            continue
    return found


def markdown(steps: list[Step], reports: list[Report]) -> Iterator[str]:
    """The steps, then every report under its name, including the rows measured before a step stopped."""
    yield "# Benchmarks on one machine\n"
    if steps:
        yield "| step | outcome | seconds |\n| --- | --- | --- |"
        for step in steps:
            yield f"| {step.name} | {step.outcome} | {step.seconds} |"
    for report in reports:
        yield f"\n## {report.benchmark}\n\n{report.markdown()}"


def main(source: Path, target: Path) -> int:
    """Writes ``table.md`` and ``table.json`` from the steps and reports in ``source``, and prints the former.

    Returns:
        0, or 2 if there is nothing to gather.
    """
    steps, reports = steps_of(source), reports_of(source)
    if not steps and not reports:
        print(f"error: {source} holds neither steps nor reports", file=sys.stderr)
        return 2
    table = "\n".join(markdown(steps, reports)) + "\n"
    (target / "table.md").write_text(table)
    content = {"steps": [asdict(step) for step in steps], "reports": [asdict(report) for report in reports]}
    (target / "table.json").write_text(json.dumps(content, indent=2) + "\n")
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
