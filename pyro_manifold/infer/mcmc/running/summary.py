"""Table of a summary and the sentences below it, for draws aligned or as they were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from pyro_manifold.diagnostics import Symmetry, align_draws, alignment_note, disagreement_warning, not_finite, table
from pyro_manifold.infer.mcmc.running.end_of_run import reasons

_MOST_ROWS = 20


def aligned_summary(
    samples: Mapping[str, Tensor],
    known: Sequence[Symmetry] | None,
    log_density: Tensor | None = None,
    *,
    prob: float = 0.9,
    num_superchains: int | None = None,
    max_rows: int | None = None,
    divergences: int = 0,
    of: str = "chains",
) -> tuple[str, list[str]]:
    """Return the table of aligned draws, with a sentence before it if chains disagree, and the lines below it.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        known: symmetries of the posterior; None if not known, and then draws are left as they are.
        log_density: ``(chains, draws)``.
        prob: probability of the interval.
        num_superchains: for nested R-hat.
        max_rows: largest number of rows of a site; None for 20.
        divergences: number of draws that are divergences.
        of: the noun for the leading dimension.
    """
    aligned = align_draws(samples, known or [])
    text = table(aligned.draws, prob, num_superchains, _MOST_ROWS if max_rows is None else max_rows)
    if known is None or not samples:
        return text, []
    first = not_finite(samples) or disagreement_warning(samples, known, log_density, num_superchains, of, divergences)
    text = text if first is None else f"{first}\n{text}"
    pairs = zip(known, aligned.contested, strict=True)
    return text, [alignment_note(symmetry, contested, samples, of) for symmetry, contested in pairs]


def plain_summary(
    samples: Mapping[str, Tensor],
    known: Sequence[Symmetry] | None,
    log_density: Tensor | None = None,
    *,
    prob: float = 0.9,
    num_superchains: int | None = None,
    max_rows: int | None = None,
    divergences: int = 0,
) -> tuple[str, list[str]]:
    """Return the table of draws as they were sampled, and the sentences below it; arguments of `aligned_summary`."""
    text = table(samples, prob, num_superchains, max_rows)
    return text, list(reasons(samples, known, log_density, num_superchains, divergences))
