"""Checks of the arguments of `MCMC`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

from pyro_manifold.density.batched import Sites
from pyro_manifold.diagnostics.convergence import check_superchains
from pyro_manifold.infer.mcmc.checks import check_counts, is_a
from pyro_manifold.infer.mcmc.running.loop import Consumer
from pyro_manifold.infer.mcmc.running.shards import Shards


@dataclass(frozen=True)
class Superchains:
    """Groups of chains that begin at one point each, so that many short chains can be judged.

    `MCMC.summary` and `pyro_manifold.diagnostics.Convergence` then have nested R-hat. Source: Margossian et al.,
    arXiv 2110.13017.

    Args:
        count: of groups.
        size: chains of each.

    Raises:
        ValueError: unless both are positive integers, and there are several groups.

    Examples:
        >>> Superchains(8, size=16).chains
        128
    """

    count: int
    size: int

    def __post_init__(self) -> None:
        check_counts(count=self.count, size=self.size)
        check_superchains(self.count, self.chains)

    @property
    def chains(self) -> int:
        """Number of chains of all groups."""
        return self.count * self.size


def check_kernel(kernel: object) -> None:
    """Raise an error if the argument is not a kernel, for example a model."""
    if not isinstance(kernel, MCMCKernel):
        raise ValueError(f"MCMC: kernel={kernel!r}, expected a kernel such as OHMC(model).")


def check_iterations(num_samples: int, warmup_steps: object, thinning: int, hook_fn: object, method: object) -> None:
    """Raise a sentence unless there is something to draw, and a way to."""
    if not isinstance(method, Shards) and method not in ("vectorized", "parallel", "sequential"):
        raise ValueError(f"chain_method={method!r}, expected 'vectorized', 'parallel', 'sequential' or Shards(...).")
    if thinning > num_samples:
        raise ValueError(f"thinning={thinning} leaves no draw of num_samples={num_samples}, expected at most that.")
    if warmup_steps is not None and (not is_a(Integral, warmup_steps) or warmup_steps < 0):  # type: ignore[operator]
        raise ValueError(f"warmup_steps={warmup_steps!r}, expected an integer that is not negative.")
    if hook_fn is not None and not callable(hook_fn):
        raise ValueError(f"hook_fn={hook_fn!r}, expected a function of kernel, params, stage and i.")


def check_vectorised(vectorised: bool, thinning: int, consumers: Sequence[Consumer], **others: object) -> None:
    """Raise an error for options that require vectorised chains; ``others`` are None if not given."""
    if vectorised:
        return
    if thinning > 1 or consumers:
        raise ValueError(
            "thinning and consumers are for chain_method='vectorized' and kernels of this package: thin the draws "
            "of get_samples(group_by_chain=True) instead."
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} is for chain_method='vectorized' and kernels of this package, such as OHMC.")


def check_data_loader(data_loader: object, takes_one: bool, kernel: object) -> None:
    """Raise a sentence if there is one, for a kernel that sees all data."""
    if data_loader is not None and not takes_one:
        raise ValueError(
            "data_loader is for vectorised chains of kernels that see a part of the data at a time, not for "
            f"{type(kernel).__name__} run so: take OSGHMC, with chain_method='vectorized', or pass all of the data to "
            "run(...)."
        )


def check_params(initial_params: object) -> Sites:
    """Return the initial values as tensors; raise an error if that is not possible."""
    if not isinstance(initial_params, Mapping):
        raise ValueError(f"initial_params={initial_params!r}, expected a dictionary of tensors by names of sites.")
    tensors = {}
    for name, value in initial_params.items():
        try:
            tensors[name] = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"initial_params['{name}']={value!r}, expected a tensor.") from None
    return tensors


def check_names(save_params: object) -> None:
    """Raise an error if the names of sites are given as one string instead of a list."""
    if isinstance(save_params, str):
        raise ValueError(f"save_params={save_params!r}, expected a list of names of sites like [{save_params!r}].")


def check_shards(shards: Shards | None, chains: Mapping[str, int], **local: Any) -> None:
    """Raise a sentence for what chains in other processes cannot do."""
    if shards is None:
        return
    (argument, count), *_ = chains.items()
    if count % shards.count:
        raise ValueError(f"{argument}={count} are not to be split into shards={shards.count}: take a multiple of it.")
    for name, value in local.items():
        if value:
            raise ValueError(f"{name} belongs to this process, and shards run in others: leave it out.")


def functions(consumers: Sequence[Consumer]) -> tuple[Consumer, ...]:
    """Return the consumers as a tuple; raise an error unless all are functions."""
    if not isinstance(consumers, Sequence) or not all(callable(consumer) for consumer in consumers):
        raise ValueError(f"consumers={consumers!r}, expected a list of functions of an Iteration.")
    return tuple(consumers)


def stacked(initial_params: Sites | None, chains: int, starts: int) -> Sites | None:
    """Return the initial values with a leading chain dimension, each start repeated for equally many chains."""
    if initial_params is None:
        return None
    initial_params = check_params(initial_params)
    if chains == 1:
        return {name: value.unsqueeze(0) for name, value in initial_params.items()}
    for name, value in initial_params.items():
        if value.dim() == 0 or len(value) != starts:
            raise ValueError(
                f"initial_params['{name}'] has shape {tuple(value.shape)}, expected a leading dimension of "
                f"{starts}, one start for each {'super' * (starts < chains)}chain."
            )
    return {name: value.repeat_interleave(chains // starts, 0) for name, value in initial_params.items()}
