"""Sentences below a summary table: how well chains agree on identified quantities, and unexplained disagreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.diagnostics.convergence import convergence, nested_r_hat, varies
from pyro_manifold.diagnostics.disagreement import LARGEST_RHAT
from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry

_MOST_NAMED = 6
_SMALLEST_REPORTED = 0.02  # of the draws


def agreement(samples: Mapping[str, Tensor], symmetry: Symmetry, of: str = "chains") -> str:
    """Describe the largest R-hat and the smallest bulk effective size of the invariants of a symmetry, as a sentence.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        symmetry: a symmetry of the posterior.
        of: the noun for the leading dimension.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 500, 3, 2, generator=torch.Generator().manual_seed(0))
        >>> agreement({"U": draws}, Symmetry("rotations", ("U",)))
        'R-hat of the invariants is at most 1.002, and their effective sample size at least 1898.'
    """
    names = set(symmetry.names)
    own = {name: x for name, x in samples.items() if name in names}
    known = known_quantities(own, [symmetry]).values()
    found = [convergence(x, ("r_hat", "ess_bulk")) for x in known]
    r_hat = torch.cat([each["r_hat"].flatten() for each in found])
    sizes = torch.cat([each["ess_bulk"].flatten() for each in found])
    invariants = "cos and sin" if symmetry.kind == "turns" else "the invariants"
    if bool(r_hat.isnan().all()):
        if any(bool(varies(x.flatten(2) if x.dim() > 2 else x.unsqueeze(-1)).any()) for x in known):
            return f"There are too few draws to compare {of} on {invariants}."
        return f"All draws of {invariants} are equal."
    return (
        f"R-hat of {invariants} is at most {float(r_hat[~r_hat.isnan()].max()):.3f}, and their effective sample size "
        f"at least {_smallest(sizes):.0f}."
    )


def alignment_note(
    symmetry: Symmetry, ambiguous_fraction: float, samples: Mapping[str, Tensor], of: str = "chains"
) -> str:
    """Describe the alignment of the sites of a symmetry and the convergence of its invariants, in one line.

    Args:
        symmetry: a symmetry of the posterior.
        ambiguous_fraction: as in `AlignedDraws.ambiguous_fraction`.
        samples: ``{site: (chains, draws, ...)}``.
        of: the noun for the leading dimension.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 500, 3, 2, generator=torch.Generator().manual_seed(0))
        >>> print(alignment_note(Symmetry("rotations", ("U",)), 0.0, {"U": draws}))
        `U` is known only up to rotations of its columns: each draw is rotated to the mean subspace (unaligned: \
summary(align=False)). R-hat of the invariants is at most 1.002, and their effective sample size at least 1898.
    """
    names = set(symmetry.names)
    done = {
        "signs": "each draw has the signs nearest to the mean",
        "permutations": "each draw has the signs and the order nearest to the mean",
        "rotations": "each draw is rotated to the mean subspace",
        "turns": "each draw is in the turn nearest to the mean direction",
    }[symmetry.kind]
    done += "".join(f", and `{scale}` is made positive" for scale, *_ in symmetry.positive)
    line = f"{symmetry.known_up_to()}: {done} (unaligned: summary(align=False)). "
    line += agreement({name: x for name, x in samples.items() if name in names}, symmetry, of)
    if ambiguous_fraction < _SMALLEST_REPORTED:
        return line
    other = {"signs": "other signs are", "permutations": "another order or other signs are", "turns": "another turn is"}
    nearly = other.get(symmetry.kind, "a reflection is")
    if symmetry.kind == "turns":
        dependent = "mean and standard deviation depend on where the circle is cut"
    else:
        dependent = "the aligned distribution of single columns depends on the alignment"
    return f"{line} For {100 * ambiguous_fraction:.0f} % of the draws {nearly} nearly as good: {dependent}."


def disagreement_warning(
    samples: Mapping[str, Tensor],
    symmetries: Sequence[Symmetry],
    log_density: Tensor | None = None,
    num_superchains: int | None = None,
    of: str = "chains",
    divergences: int = 0,
) -> str | None:
    """Return a warning that names the quantities of `unexplained`, for the head of a table; None if chains agree.

    Runs of SMC (``of="runs"``) are compared as chains are; for a single run the result is None. With divergences, which
    can have this effect, these come first. Another order of components is named if sorted components agree.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
        >>> draws[2] += 2
        >>> disagreement_warning({"c": draws}, [])[:39]
        'Chains disagree, R-hat of c (1.32): the'
    """
    first = next(iter(samples.values()), torch.empty(1))
    apart = "" if of == "runs" and len(first) == 1 else _apart(samples, symmetries, log_density, num_superchains)
    if not apart:
        return None
    of_columns = any(symmetry.kind != "turns" for symmetry in symmetries)
    columns = ", and not only on signs, order or rotations of columns" if of_columns else ""
    if of == "runs":
        return (
            f"Runs disagree{columns}, R-hat of {apart}: some may have missed modes or given them the wrong share. Take "
            "more num_particles, or chain_length."
        )
    several = len(first) > 1
    subject = "Chains disagree" if several else "Parts of the chain disagree"
    found = f"{subject}{columns}, R-hat of {apart}: {_causes(several, divergences)}"
    if divergences:
        return f"{found}; the sentence on divergences below the table comes first."
    found += (
        ". Take more warmup_steps and draws, and compare the priors with the data; if diagnostics()['modes'] still has "
        "several groups, sample all modes, with SMC(kernel) or MCMC(..., tempering=True)."
    )
    if log_density is None or _largest_r_hat(log_density, num_superchains) > _threshold(samples, num_superchains):
        return found
    changed = {name for symmetry in symmetries for name in symmetry.names}
    own = {name: x for name, x in samples.items() if name not in changed}
    sorted_ones = [name for name, x in own.items() if _is_in_another_order(x, samples, num_superchains)]
    if not sorted_ones:
        return found
    return (
        f"{found} Sorted values of {_listed(sorted_ones)} agree, and so does the log density: chains have exchangeable "
        "components in another order; order such components in the model."
    )


def _causes(several: bool, divergences: int) -> str:
    """Return what can make chains, or parts of a chain, disagree; none of it has been tested."""
    they = "they" if several else "it"
    if divergences:
        counted = f"{divergences} divergences" if divergences > 1 else "a divergence"
        return f"with {counted}, {they} may not reach the whole posterior"
    modes = "be in different modes" if several else "have changed modes"
    return f"{they} may {modes}, may not have converged, or may mix slowly"


def _is_in_another_order(values: Tensor, samples: Mapping[str, Tensor], num_superchains: int | None) -> bool:
    """Return whether chains that disagree on a site agree on its entries sorted along one of its dimensions."""
    bound = _threshold(samples, num_superchains)
    if values.dim() < 3 or not values.numel() or _largest_r_hat(values, num_superchains) <= bound:
        return False
    dims = [dim for dim in range(2, values.dim()) if values.shape[dim] > 1]
    return any(_largest_r_hat(values.sort(dim).values, num_superchains) <= bound for dim in dims)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def not_finite(samples: Mapping[str, Tensor]) -> str | None:
    """Name the sites with draws that are not finite, and count these; None if there are none.

    Examples:
        >>> import torch
        >>> print(not_finite({"c": torch.tensor([[1.0, torch.nan, 2.0]])}))
        Draws of `c` (1 of 3) are not finite: sites that change with it are not aligned, and convergence is not \
judged. Look for what overflows in the model, or take a smaller step_size.
    """
    counts = {name: int((~x.isfinite()).flatten(2).any(-1).sum()) for name, x in samples.items() if x.dim() > 2}
    counts |= {name: int((~x.isfinite()).sum()) for name, x in samples.items() if x.dim() == 2}
    found = [f"`{name}` ({counts[name]} of {x.shape[:2].numel()})" for name, x in samples.items() if counts[name]]
    if not found:
        return None
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"Draws of {', '.join(found[:_MOST_NAMED])}{more} are not finite: sites that change with "
        f"{'it' if len(found) == 1 else 'them'} are not aligned, and convergence is not judged. Look for what "
        "overflows in the model, or take a smaller step_size."
    )


def unexplained(
    samples: Mapping[str, Tensor],
    symmetries: Sequence[Symmetry],
    log_density: Tensor | None = None,
    num_superchains: int | None = None,
    divergences: int = 0,
) -> str | None:
    """Return a sentence on quantities on which chains disagree although no symmetry changes them.

    These are sites without a symmetry, the invariants of sites with one and the log density, if the largest R-hat of
    their entries is above 1.05 (nested R-hat with ``num_superchains``, above 1.05 times its value for independent
    draws).

    Args:
        samples: ``{site: (chains, draws, ...)}``, at least 4 draws.
        symmetries: symmetries of the posterior.
        log_density: ``(chains, draws)``.
        num_superchains: number of superchains, for nested R-hat.
        divergences: number of draws that are divergences.

    Returns:
        A sentence; None if chains agree.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
        >>> draws[2] += 2
        >>> unexplained({"c": draws, "d": draws - draws.mean(1, keepdim=True)}, [])[:43]
        'No symmetry explains the R-hat of c (1.32):'
    """
    apart = _apart(samples, symmetries, log_density, num_superchains)
    if not apart:
        return None
    several = len(next(iter(samples.values()))) > 1
    remedy = "see diagnostics()['modes'], and take more warmup_steps and draws"
    if divergences:
        remedy = "the sentence on divergences comes first"
    causes = _causes(several, divergences).replace("they", "chains", 1).replace("it may", "the chain may", 1)
    return f"No symmetry explains the R-hat of {apart}: {causes}; {remedy}."


def _apart(
    samples: Mapping[str, Tensor],
    symmetries: Sequence[Symmetry],
    log_density: Tensor | None,
    num_superchains: int | None,
) -> str:
    """Name the quantities that chains disagree on with their R-hat, the worst first; "" if there are none."""
    quantities = known_quantities(samples, symmetries)
    if log_density is not None:
        quantities["log density"] = log_density
    largest = {name: _largest_r_hat(x, num_superchains) for name, x in quantities.items() if x.numel()}
    found = sorted((name for name, value in largest.items() if value > 1), key=lambda name: -largest[name])
    apart = [
        f"{name} ({value:.2f})" for name in found if (value := largest[name]) > _threshold(samples, num_superchains)
    ]
    more = f" and {len(apart) - _MOST_NAMED} more" if len(apart) > _MOST_NAMED else ""
    return ", ".join(apart[:_MOST_NAMED]) + more


def _threshold(samples: Mapping[str, Tensor], num_superchains: int | None) -> float:
    """Return the largest acceptable R-hat: 1.05, times sqrt(1 + 1/N) for nested R-hat with N draws in a superchain."""
    if num_superchains is None:
        return LARGEST_RHAT
    chains, draws = next(iter(samples.values())).shape[:2]
    return float(LARGEST_RHAT * (1 + num_superchains / (chains * draws)) ** 0.5)


def _largest_r_hat(values: Tensor, num_superchains: int | None) -> float:
    """Return the largest R-hat of all entries; 0 if no entry varies."""
    found = convergence(values, ("r_hat",))["r_hat"]
    if num_superchains is not None:
        found = torch.where(found.isnan(), torch.nan, nested_r_hat(values, num_superchains).double().cpu())
    return float(found.nan_to_num(nan=0.0, posinf=torch.inf).max())


def _smallest(sizes: Tensor) -> float:
    return float(sizes[~sizes.isnan()].min())
