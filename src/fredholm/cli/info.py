"""`fredholm info`: describes the installation."""

from dataclasses import dataclass

from fredholm.cli.json_text import json_text
from fredholm.cli.parsing import Flag, parse
from fredholm.training.storage.machine import describe_machine


@dataclass(frozen=True, kw_only=True)
class InfoArguments:
    """Print versions, devices, evaluation routes and installed extras."""

    json: Flag = False
    """Print one JSON object."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm info` with these arguments."""
    arguments = parse(InfoArguments, "info", argv)
    facts = describe_machine()
    if arguments.json:
        print(json_text(facts, indent=2))
        return
    for topic, entries in facts.items():
        print(f"{topic}:")
        width = max(map(len, entries), default=0)
        for name, value in entries.items():
            print(f"  {name:<{width}}  {value}")
