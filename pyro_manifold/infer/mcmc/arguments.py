"""Checks of the arguments of `MCMC`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

from pyro_manifold.density import Sites
from pyro_manifold.diagnostics import check_superchains
from pyro_manifold.infer.mcmc.checks import check_counts, is_a
from pyro_manifold.infer.mcmc.running import Consumer, Shards, Until, as_until, default_goals

_DEFAULT_CHAINS = 4  # of a run without num_samples and until; R-hat compares chains, so that one does not do


@dataclass(frozen=True)
class Superchains:
    """Groups of chains with a common initial value in each group, for nested R-hat of many short chains.

    `MCMC.summary` and `pyro_manifold.diagnostics.Convergence` then report nested R-hat. Source: Margossian et al.,
    arXiv 2110.13017.

    Args:
        count: number of groups.
        size: number of chains of each group.

    Raises:
        ValueError: unless both are positive integers and ``count`` is at least 2.

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


def check_method(method: object) -> None:
    """Raise an error for an unknown ``chain_method``."""
    if not isinstance(method, Shards) and method not in ("vectorized", "parallel", "sequential"):
        raise ValueError(f"chain_method={method!r}, expected 'vectorized', 'parallel', 'sequential' or Shards(...).")


def chains_and_goals(
    num_chains: int | Superchains | None,
    num_samples: int | None,
    until: object,
    kernel: MCMCKernel,
    vectorised: bool,
    method: object,
) -> tuple[int, int | None, Until | None]:
    """Return the numbers of chains and of superchains, and the goals, with defaults for those that are not given.

    Raises:
        ValueError: without ``num_samples`` and ``until`` if the chains cannot be stopped at a goal.
    """
    groups = num_chains.count if isinstance(num_chains, Superchains) else None
    chains = num_chains.chains if isinstance(num_chains, Superchains) else num_chains
    if num_samples is not None or until is not None:
        return 1 if chains is None else chains, groups, as_until(until, groups)
    _check_stops_at_goals(kernel, vectorised, method)
    return _DEFAULT_CHAINS if chains is None else chains, groups, default_goals(groups)


def _check_stops_at_goals(kernel: MCMCKernel, vectorised: bool, method: object) -> None:
    if vectorised and not isinstance(method, Shards):
        return
    if isinstance(method, Shards):
        why = "chain_method=Shards(...)"
    elif method == "vectorized":
        why = f"{type(kernel).__name__}, which is not a kernel of this package"
    else:
        why = f"chain_method={method!r}"
    raise ValueError(f"MCMC needs num_samples with {why}: pass it, such as num_samples=1000.")


def check_iterations(num_samples: int, warmup_steps: object, thinning: int, hook_fn: object) -> None:
    """Raise an error for invalid numbers of iterations or ``hook_fn``."""
    if thinning > num_samples:
        raise ValueError(f"thinning={thinning} leaves no draw, expected at most num_samples={num_samples}.")
    if warmup_steps is not None and (not is_a(Integral, warmup_steps) or warmup_steps < 0):  # type: ignore[operator]
        raise ValueError(f"warmup_steps={warmup_steps!r}, expected an integer ≥ 0.")
    if hook_fn is not None and not callable(hook_fn):
        raise ValueError(f"hook_fn={hook_fn!r}, expected a function hook_fn(kernel, params, stage, i).")


def check_vectorised(vectorised: bool, thinning: int, consumers: Sequence[Consumer], **others: object) -> None:
    """Raise an error for options that require vectorised chains; ``others`` are None if not given."""
    if vectorised:
        return
    if thinning > 1 or consumers:
        raise ValueError(
            "thinning and consumers need chain_method='vectorized' and a kernel of this package: thin the draws of "
            "get_samples(group_by_chain=True) instead."
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} needs chain_method='vectorized' and a kernel of this package, such as OHMC.")


def check_data_loader(data_loader: object, takes_one: bool, kernel: object) -> None:
    """Raise an error if a data loader is given for a kernel that does not use minibatches."""
    if data_loader is not None and not takes_one:
        raise ValueError(
            f"data_loader needs vectorised chains of a minibatch kernel, not {type(kernel).__name__} run in this "
            "way: use OSGHMC with chain_method='vectorized', or pass all data to run(...)."
        )


def check_params(initial_params: object) -> Sites:
    """Return the initial values as tensors; raise an error if that is not possible."""
    if not isinstance(initial_params, Mapping):
        raise ValueError(f"initial_params={initial_params!r}, expected a dictionary of tensors by site.")
    tensors = {}
    for name, value in initial_params.items():
        try:
            tensors[name] = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"initial_params['{name}']={value!r}, expected a tensor.") from None
    return tensors


def check_names(save_params: object) -> None:
    """Raise an error if a string is given instead of a list of site names."""
    if isinstance(save_params, str):
        raise ValueError(f"save_params={save_params!r}, expected a list of site names like [{save_params!r}].")


def check_shards(shards: Shards | None, chains: Mapping[str, int], **local: Any) -> None:
    """Raise an error for options that chains in other processes do not support."""
    if shards is None:
        return
    (argument, count), *_ = chains.items()
    if count % shards.count:
        raise ValueError(
            f"{argument}={count} is not divisible by the number of shards, {shards.count}: choose a multiple of it."
        )
    for name, value in local.items():
        if value:
            raise ValueError(f"{name} is not supported with shards, which run in other processes: leave it out.")


def functions(consumers: Sequence[Consumer]) -> tuple[Consumer, ...]:
    """Return the consumers as a tuple; raise an error unless all are functions."""
    if not isinstance(consumers, Sequence) or not all(callable(consumer) for consumer in consumers):
        raise ValueError(f"consumers={consumers!r}, expected a list of functions of an Iteration.")
    return tuple(consumers)


def stacked(initial_params: Sites | None, chains: int, starts: int) -> Sites | None:
    """Return the initial values with a leading chain dimension, each repeated for equally many chains."""
    if initial_params is None:
        return None
    initial_params = check_params(initial_params)
    if chains == 1:
        return {name: value.unsqueeze(0) for name, value in initial_params.items()}
    for name, value in initial_params.items():
        if value.dim() == 0 or len(value) != starts:
            raise ValueError(
                f"initial_params['{name}'] has shape {tuple(value.shape)}, expected a leading dimension of "
                f"{starts}, one initial value for each {'super' * (starts < chains)}chain: stack as many, or pass "
                "num_chains."
            )
    return {name: value.repeat_interleave(chains // starts, 0) for name, value in initial_params.items()}
