"""What all benchmarks share: their command line, and how they print what they measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

_HEADINGS = ("name", "value", "unit", "peer", "ratio")


@dataclass(frozen=True)
class Measurement:
    """One figure; `ratio` is this value divided by that of the `peer`."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if (self.peer is None) != (self.ratio is None):
            raise ValueError(f"{self.name}: a ratio needs a peer, and a peer a ratio")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the flags that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="measure less, within a minute")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
    return parser


def print_report(measurements: Iterable[Measurement], *, as_json: bool) -> None:
    """Print measurements as a table for people or as JSON for programs."""
    if as_json:
        print(json.dumps([asdict(measurement) for measurement in measurements], indent=2))
        return
    rows = [_HEADINGS, *(_row(measurement) for measurement in measurements)]
    name, value, unit, peer, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for row in rows:
        line = f"{row[0]:<{name}}  {row[1]:>{value}}  {row[2]:<{unit}}  {row[3]:<{peer}}  {row[4]}"
        print(line.rstrip())


def _row(measurement: Measurement) -> tuple[str, str, str, str, str]:
    ratio = "" if measurement.ratio is None else f"{measurement.ratio:.2f}"
    digits = 0 if measurement.value >= 1000 else 3
    return (measurement.name, f"{measurement.value:,.{digits}f}", measurement.unit, measurement.peer or "", ratio)
