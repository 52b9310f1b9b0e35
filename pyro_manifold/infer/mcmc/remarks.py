"""What is said of a run when it has ended."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_manifold.diagnostics.disagreement import named, stuck_chains, temperature_of_hot_chains
from pyro_manifold.diagnostics.symmetries import Symmetry, symmetries
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.target.batched import Sites


def warn_of_chains(samples: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> None:
    """Warn of chains that hardly moved, and of those that are too hot.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        statistics: ``{name: (chains, draws)}``.
    """
    stuck = stuck_chains(samples, statistics)
    if stuck:
        chains = next(len(value) for value in [*statistics.values(), *samples.values()])
        where = named(stuck) if chains > 1 else "the chain"
        whose = "their" if len(stuck) > 1 else "its"
        warnings.warn(
            f"After warm-up {where} moved in fewer than one iteration of twenty, so that {whose} draws are a few "
            "points, not the posterior: take more warmup_steps, a start nearer to the mass (init_strategy of the "
            "kernel, or initial_params), a shorter step_size or float64.",
            stacklevel=4,
        )
    hot = temperature_of_hot_chains(statistics)
    if hot is not None:
        measured, wanted = hot
        warnings.warn(
            f"The momenta of chains are at a temperature of {measured:.3g} instead of {wanted:.3g}: the noise of "
            "minibatches, or steps that are too long, heat the chains, and draws spread more widely than the "
            "posterior. Take a smaller step_size, shorter steps of single sites (scales), larger batches or more "
            "friction.",
            stacklevel=4,
        )


def symmetries_of_run(
    kernel: object, initial_params: Sites | None, args: Any, kwargs: Any, samples: Mapping[str, Tensor]
) -> list[Symmetry]:
    """What the density of a run does not change under, by the draws ``{site: (chains, draws, ...)}``; none if it fails.

    Args:
        kernel: that the run was of; others than those of this package tell nothing.
        initial_params: of the run.
        args: positional arguments of its model.
        kwargs: keyword arguments.
        samples: its draws.
    """
    if not isinstance(kernel, Kernel):
        return []
    try:
        target = kernel.target(initial_params, args, kwargs)
        if not set(samples) >= {*target.manifolds, *target.transforms}:
            return []  # save_params left sites out
        return symmetries(target, {name: value.flatten(0, 1) for name, value in samples.items()})
    except Exception:  # a model can fail in any way, and the table stands without a remark
        return []
