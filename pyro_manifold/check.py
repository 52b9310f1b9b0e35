"""Self-test of an installation, in less than 20 seconds: `python -m pyro_manifold.check`.

It prints versions, whether native code is available and the CUDA devices. Then it compares draws with distributions
whose means are known exactly, from an integral that uses nothing of this package. ``--json`` prints the same as JSON,
and ``--seed`` sets the seed of the draws. The exit status is 0 if all comparisons agree, else 1. A missing C compiler
is reported and is no failure: sampling is slower without one, and nothing else changes.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_double
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from torch import Tensor
from torch.special import i0e

from pyro_manifold.compiled.native import NoCompilerError, compiled, native_code_is_allowed, path_of_compiler
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, GeodesicSlice
from pyro_manifold.version import __version__

STANDARD_ERRORS = 4.0
"""Largest accepted distance. A correct estimate exceeds it with probability 6e-5."""
_PACKAGES = ("torch", "pyro-ppl", "numpy", "scipy", "arviz", "pandas", "optree")


class Comparison(NamedTuple):
    """Estimate of an expectation next to its exact value.

    Attributes:
        name: distribution, sampler and expectation.
        estimate: mean of the draws.
        expected: exact value.
        error: Monte Carlo standard error of the estimate, or the error of rounding if there are no draws.
        largest_error: largest accepted error; chains that hardly move exceed it.
    """

    name: str
    estimate: float
    expected: float
    error: float
    largest_error: float = math.inf

    @property
    def distance(self) -> float:
        """Distance between estimate and exact value in standard errors."""
        return abs(self.estimate - self.expected) / self.error if self.error else math.nan

    @property
    def passed(self) -> bool:
        """Agreement within `STANDARD_ERRORS` and the largest error; False if a number is NaN."""
        return self.distance <= STANDARD_ERRORS and self.error <= self.largest_error

    @property
    def row(self) -> dict[str, Any]:
        """All numbers by name; those that are not finite are None."""
        row = {**self._asdict(), "distance": self.distance, "passed": self.passed}
        return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row.items()}


def compare(name: str, draws: Tensor, expected: float, largest_error: float) -> Comparison:
    """Compare the mean of draws ``(n,)``, or of independent chains ``(chains, n)``, with its exact value."""
    means = draws if draws.dim() == 1 else draws.mean(1)
    error = float(means.std()) / math.sqrt(len(means))
    return Comparison(name, float(draws.mean()), expected, error, largest_error)


# ---- what is compared --------------------------------------------------------------------------------------------


def langevin_moments(a: float, b: float) -> tuple[float, float, float]:
    r"""Return the log normalising constant and the means of $U_{11}$ and $U_{22}$ of a matrix Langevin distribution.

    The density on V(3,2) is proportional to $e^{aU_{11} + bU_{22}}$. U is the first two columns of a rotation, whose
    entries are quadratic in a unit quaternion, and two angles of the quaternion integrate to Bessel functions (Prentice
    1986, J. R. Stat. Soc. B 48):

    $$ c(a, b) = \int_0^1 I_0(bt) \, I_0(b(1-t)) \, e^{a(2t-1)} \, dt $$

    Examples:
        >>> import math
        >>> log_constant, mean, _ = langevin_moments(3.0, 0.0)  # von Mises–Fisher
        >>> abs(log_constant - math.log(math.sinh(3) / 3)) < 1e-12, abs(mean - (1 / math.tanh(3) - 1 / 3)) < 1e-12
        (True, True)
    """
    first, second = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (a, b))
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(200))
    t = (points + 1) / 2
    log_bessel = (i0e(second * t) * i0e(second * (1 - t))).log() + second.abs()
    log_constant = torch.logsumexp(log_bessel + first * (2 * t - 1) + (weights / 2).log(), 0)
    means = torch.autograd.grad(log_constant, [first, second])
    return float(log_constant.detach()), float(means[0]), float(means[1])


def uniform_draws(device: str = "cpu", dtype: torch.dtype = torch.float64) -> list[Comparison]:
    """Compare draws of the uniform distribution with its moments."""
    U = StiefelUniform(4, 2, device=device, dtype=dtype).sample(torch.Size([50_000])).double().cpu()
    minor = U[:, 0, 0] * U[:, 1, 1] - U[:, 0, 1] * U[:, 1, 0]
    name = f"StiefelUniform, {device}, {str(dtype).removeprefix('torch.')}"
    departure = float((U.mT @ U - torch.eye(2, dtype=U.dtype)).abs().max())
    return [
        compare(f"{name}: E U11²", U[:, 0, 0] ** 2, 1 / 4, 0.002),
        compare(f"{name}: E (U11 U22 − U12 U21)²", minor**2, 1 / 6, 0.002),
        Comparison(f"{name}: largest |UᵀU − I|", departure, 0.0, 10 * torch.finfo(dtype).eps),
    ]


def uniform_draws_on_devices() -> list[Comparison]:
    """Compare uniform draws in float64, and in float32 on each CUDA device."""
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return uniform_draws() + [found for device in devices for found in uniform_draws(device, torch.float32)]


def langevin_draws() -> list[Comparison]:
    """Compare exact draws of the matrix Langevin distribution, and its constant, with integrals."""
    F = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    distribution = MatrixLangevin(F)
    U = distribution.sample(torch.Size([20_000]))
    log_constant, *means = langevin_moments(3.0, 1.0)
    found = float((F * U[0]).sum() - distribution.log_prob(U[0]))
    return [
        Comparison("MatrixLangevin: log normalising constant", found, log_constant, 1e-10),
        compare("MatrixLangevin, draws: E U11", U[:, 0, 0], means[0], 0.005),
        compare("MatrixLangevin, draws: E U22", U[:, 1, 1], means[1], 0.005),
    ]


def langevin_model() -> None:
    """Define the same matrix Langevin distribution as a Pyro model."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("density", 3.0 * U[..., 0, 0] + 1.0 * U[..., 1, 1])


def langevin_chains(kernel: Callable[..., Any]) -> list[Comparison]:
    """Compare 128 chains of a kernel with the same integrals."""
    mcmc = MCMC(kernel(langevin_model), 500, 200, num_chains=128, disable_progbar=True)
    mcmc.run()
    U, (_, *means) = mcmc.get_samples(group_by_chain=True)["U"], langevin_moments(3.0, 1.0)
    name = f"matrix Langevin, {getattr(kernel, '__name__', 'kernel')}"
    return [
        compare(f"{name}: E U11", U[..., 0, 0], means[0], 0.01),
        compare(f"{name}: E U22", U[..., 1, 1], means[1], 0.01),
    ]


def langevin_chains_of_kernels() -> list[Comparison]:
    """Compare chains with and without gradients."""
    return [found for kernel in (OHMC, GeodesicSlice) for found in langevin_chains(kernel)]


COMPARISONS = (uniform_draws_on_devices, langevin_draws, langevin_chains_of_kernels)


# ---- the report --------------------------------------------------------------------------------------------------


def facts() -> dict[str, str]:
    """Return versions, the C compiler, whether native code is available, and devices, in the order of the report."""
    found = {"pyro_manifold": __version__, "python": platform.python_version(), "platform": platform.platform()}
    found |= {name: _version(name) for name in _PACKAGES}
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found |= {"native code": _native_code(), "CUDA": ", ".join(devices) or "no device"}
    return found | {"default dtype": str(torch.get_default_dtype()), "threads": str(torch.get_num_threads())}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _native_code() -> str:
    """Return whether a function can be compiled, loaded and called, or the reason why not."""
    if not native_code_is_allowed():
        return "turned off by PYRO_MANIFOLD_NATIVE=0 in the environment"
    try:
        twice = compiled("double twice(double x) { return 2 * x; }", 1).twice
        twice.argtypes, twice.restype = [c_double], c_double
        return f"by {path_of_compiler()}" if twice(1.5) == 3.0 else "not available: a compiled function is wrong"
    except NoCompilerError as error:
        return f"not available, sampling is slower: {error}"


def self_test(seed: int = 0, comparisons: Iterable[Callable[[], list[Comparison]]] = COMPARISONS) -> dict[str, Any]:
    """Run comparisons in float64 with one seed. An error of one is part of the report, and the others run on."""
    begun, found, errors, about = time.perf_counter(), [], [], facts()
    before = torch.get_default_dtype()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_default_dtype(torch.float64)
        for comparison in comparisons:
            pyro.set_rng_seed(seed)
            try:
                found += comparison()
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                errors.append(
                    f"{getattr(comparison, '__name__', comparison)}: {error!r} ({place.filename}:{place.lineno})"
                )
        torch.set_default_dtype(before)
    messages = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, UserWarning))
    return {
        "facts": about,
        "comparisons": [each.row for each in found],
        "warnings": list(messages),
        "errors": errors,
        "seconds": time.perf_counter() - begun,
        "passed": bool(found) and not errors and all(each.passed for each in found),
    }


def as_text(report: dict[str, Any]) -> str:
    """Return a report as tables."""
    lines = [f"{name:<14} {value}" for name, value in report["facts"].items()]
    lines += ["", f"{'comparison':<56}  estimate  expected     error  distance"]
    for row in report["comparisons"]:
        numbers = [
            math.nan if row[name] is None else row[name] for name in ("estimate", "expected", "error", "distance")
        ]
        verdict = "ok" if row["passed"] else "FAILED"
        lines.append(f"{row['name']:<56} {' '.join(f'{number:9.3g}' for number in numbers)}  {verdict}")
    lines += ["", f"Errors are Monte Carlo standard errors; distances above {STANDARD_ERRORS:g} of them fail."]
    lines += [f"Warning: {message}" for message in report["warnings"]]
    lines += [f"Error: {message}" for message in report["errors"]]
    failures = len(report["errors"]) + sum(not row["passed"] for row in report["comparisons"])
    result = f"All {len(report['comparisons'])} comparisons agree" if report["passed"] else f"{failures} FAILED"
    return "\n".join([*lines, f"{result}, {report['seconds']:.0f} s."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 0 if all comparisons agree, else 1."""
    parser = argparse.ArgumentParser(prog="python -m pyro_manifold.check", description="Self-test of an installation.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (0)")
    given = parser.parse_args(arguments)
    report = self_test(given.seed)
    print(json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) if given.json else as_text(report))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
