"""Runs the comparisons and prints their table."""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import pyro
import torch

from pyro_manifold.check.comparisons import COMPARISONS, STANDARD_ERRORS, Comparison
from pyro_manifold.check.installation import facts


@dataclass(frozen=True)
class Report:
    """Facts, comparisons, warnings and errors of a self-test."""

    facts: dict[str, str]
    comparisons: list[Comparison]
    warnings: list[str]
    errors: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        """All comparisons agree, and none raised an error."""
        return bool(self.comparisons) and not self.errors and all(each.passed for each in self.comparisons)

    def as_json(self) -> str:
        """Return the report as JSON, in which numbers that are not finite are null."""
        rows = [asdict(each) | {"distance": each.distance, "passed": each.passed} for each in self.comparisons]
        whole = asdict(self) | {"passed": self.passed, "comparisons": [_finite(row) for row in rows]}
        return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)

    def as_text(self) -> str:
        """Return the report as tables."""
        wide = max(map(len, self.facts))
        lines = [f"{name:<{wide}}  {value}" for name, value in self.facts.items()]
        wide = max((len(each.name) for each in self.comparisons), default=10)
        lines += ["", f"{'comparison':<{wide}}  estimate  expected     error  distance"]
        for each in self.comparisons:
            numbers = f"{each.estimate:9.4f} {each.expected:9.4f} {each.error:9.1e} {each.distance:9.1f}"
            lines.append(f"{each.name:<{wide}} {numbers}  {_verdict(each)}")
        lines += ["", f"Errors are Monte Carlo standard errors; distances above {STANDARD_ERRORS:g} of them fail."]
        lines += [f"Warning: {message}" for message in self.warnings]
        lines += [f"Error: {message}" for message in self.errors]
        failures = len(self.errors) + sum(not each.passed for each in self.comparisons)
        result = f"All {len(self.comparisons)} comparisons agree" if self.passed else f"{failures} FAILED"
        return "\n".join([*lines, f"{result}, {self.seconds:.0f} s."])


def _finite(row: dict[str, object]) -> dict[str, object]:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _verdict(comparison: Comparison) -> str:
    if comparison.passed:
        return "ok"
    if comparison.error > comparison.largest_error:
        return f"FAILED: the error is above {comparison.largest_error:g}, chains hardly move"
    return "FAILED"


def self_test(seed: int = 0, comparisons: Sequence[Callable[[], list[Comparison]]] | None = None) -> Report:
    """Run comparisons, all if None, in float64 with one seed, and return their report.

    The default dtype is restored afterwards. An error of a comparison is part of the report, and the others run on.
    """
    begun, found, errors = time.perf_counter(), [], []
    about = facts()
    with warnings.catch_warnings(record=True) as caught, _in_double_precision():
        warnings.simplefilter("always")
        for comparison in COMPARISONS if comparisons is None else comparisons:
            pyro.set_rng_seed(seed)
            try:
                found += comparison()
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                message = f"{comparison.__name__}: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
                errors.append(message)
    messages = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
    return Report(about, found, list(dict.fromkeys(messages)), errors, time.perf_counter() - begun)


@contextmanager
def _in_double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 0 if all comparisons agree, else 1."""
    parser = argparse.ArgumentParser(prog="python -m pyro_manifold.check", description="Self-test of an installation.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (0)")
    given = parser.parse_args(arguments)
    report = self_test(given.seed)
    print(report.as_json() if given.json else report.as_text())
    return 0 if report.passed else 1
