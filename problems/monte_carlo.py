"""Comparison of draws with a known distribution, with one false-alarm rate for each comparison.

Every comparison of a Monte Carlo mean with a truth allows 4 standard errors, those of the draws (by effective
sample size) and of the truth (if it is itself an average) combined. A correct sampler fails one comparison
with probability 6e-5, and one of k with probability at most 6e-5 k, under fresh seeds.
"""

from pyro.ops.stats import effective_sample_size

STANDARD_ERRORS = 4.0


def standard_error(draws):
    """Monte Carlo standard error of the mean of ``(chains, draws)``."""
    size = effective_sample_size(draws).clamp(max=draws.numel())
    return float(draws.std() / size.sqrt())


def deviation(draws, truth, truth_error=0.0):
    """Distance of the mean of ``(chains, draws)`` from the truth, in standard errors."""
    error = (standard_error(draws) ** 2 + truth_error**2) ** 0.5
    return float(draws.mean() - truth) / error


def assert_mean(draws, truth, truth_error=0.0):
    """The mean of ``(chains, draws)`` (or of independent ``(draws,)``) agrees with the truth."""
    if draws.dim() == 1:
        error = (float(draws.var()) / len(draws) + truth_error**2) ** 0.5
        z = float(draws.mean() - truth) / error
    else:
        z = deviation(draws, truth, truth_error)
    assert abs(z) < STANDARD_ERRORS, (
        f"mean {float(draws.mean()):.4f}, truth {float(truth):.4f}: {z:.1f} standard errors"
    )
