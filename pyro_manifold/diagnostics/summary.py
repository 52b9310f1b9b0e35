"""Summary of a posterior as text: the table of its draws, and the sentences before and below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyro_manifold.diagnostics.aligned import align_draws
from pyro_manifold.diagnostics.divergences import divergence_advice
from pyro_manifold.diagnostics.posterior import Posterior
from pyro_manifold.diagnostics.reasons import agreement, alignment_note, disagreement_warning, not_finite, unexplained
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry
from pyro_manifold.diagnostics.table import table

_MOST_ROWS = 20


def summarise(posterior: Posterior, prob: float = 0.9, *, align: bool = True, max_rows: int | None = None) -> str:
    """Return the table of `MCMC.summary` with the lines before and below it.

    Args:
        posterior: a `Posterior`, or what `Posterior.of` takes: a run, or draws by name.
        prob: probability of the interval, between 0 and 1.
        align: whether to align draws.
        max_rows: largest number of rows of a site; None is 20 with ``align``, and no limit without.

    Raises:
        ValueError: for another ``prob`` or ``max_rows``.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
        >>> print(summarise(Posterior({"x": draws})).split()[0])
        mean
    """
    posterior, parts = Posterior.of(posterior), _aligned if align else _as_drawn
    text, lines = parts(posterior, prob, max_rows)
    return "\n".join([text, *_of_divergences(posterior), *lines, *posterior.notes.lines])


def _aligned(posterior: Posterior, prob: float, max_rows: int | None) -> tuple[str, list[str]]:
    """Return the table of aligned draws, with a sentence before it if chains disagree, and the lines below it."""
    samples, symmetries, superchains = posterior.draws, posterior.symmetries, posterior.notes.num_superchains
    aligned = align_draws(samples, symmetries or [])
    functions = posterior.functions_of(aligned.draws) if symmetries else {}
    draws: Any = aligned.draws
    if functions:
        samples, draws = {**samples, **functions}, {**draws, **functions}
    text = table(draws, prob, superchains, _MOST_ROWS if max_rows is None else max_rows)
    if not samples:
        return text, []
    first = not_finite(samples)
    if first is None:
        first = disagreement_warning(
            samples, symmetries or [], posterior.log_density, superchains, posterior.unit, posterior.divergences
        )
        if first is not None and symmetries is None:
            first += f" Draws are compared as they are: symmetries are not known, since {posterior.without_density()}."
    text = text if first is None else f"{first}\n{text}"
    if symmetries is None:
        return text, []
    pairs = zip(symmetries, aligned.ambiguous_fraction, strict=True)
    return text, [
        alignment_note(symmetry, ambiguous_fraction, samples, posterior.unit) for symmetry, ambiguous_fraction in pairs
    ]


def _as_drawn(posterior: Posterior, prob: float, max_rows: int | None) -> tuple[str, list[str]]:
    """Return the table of draws as they were sampled, and the sentences below it."""
    text = table(posterior.draws, prob, posterior.notes.num_superchains, max_rows)
    return text, list(_reasons(posterior, posterior.symmetries))


def _reasons(posterior: Posterior, symmetries: Sequence[Symmetry] | None) -> Iterator[str]:
    """Yield explanations of disagreement between chains, for draws as they were sampled."""
    for symmetry in symmetries or []:
        yield symmetry.sentence()
        yield agreement(posterior.draws, symmetry, posterior.unit)
    if symmetries is not None and posterior.draws and posterior.unit == "chains":
        superchains, divergences = posterior.notes.num_superchains, posterior.divergences
        sentence = unexplained(posterior.draws, symmetries, posterior.log_density, superchains, divergences)
        if sentence is not None:
            yield sentence


def _of_divergences(posterior: Posterior) -> Iterator[str]:
    if "diverging" in posterior.statistics:
        yield f"Number of divergences: {posterior.divergences}"
        if posterior.divergences:
            yield divergence_advice(posterior.program, posterior.draws, posterior.statistics["diverging"])
