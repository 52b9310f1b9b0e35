"""Checks of what the user gives to MCMC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch

from pyro_manifold.infer.mcmc.checks import is_a
from pyro_manifold.infer.mcmc.loop import Consumer
from pyro_manifold.target.batched import Sites


def check_iterations(num_samples: int, warmup_steps: object, thinning: int, hook_fn: object, method: object) -> None:
    """Raise a sentence unless there is something to draw, and a way to."""
    if method not in ("vectorized", "parallel", "sequential"):
        raise ValueError(f"chain_method={method!r}, expected 'vectorized', 'parallel' or 'sequential'.")
    if thinning > num_samples:
        raise ValueError(f"thinning={thinning} leaves no draw of num_samples={num_samples}, expected at most that.")
    if warmup_steps is not None and (not is_a(Integral, warmup_steps) or warmup_steps < 0):  # type: ignore[operator]
        raise ValueError(f"warmup_steps={warmup_steps!r}, expected an integer that is not negative.")
    if hook_fn is not None and not callable(hook_fn):
        raise ValueError(f"hook_fn={hook_fn!r}, expected a function of kernel, params, stage and i.")


def check_vectorised(vectorised: bool, thinning: int, consumers: Sequence[Consumer], **others: object) -> None:
    """Raise a sentence for what only vectorised chains can do; ``others`` are None or False if not asked for."""
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


def check_data_loader(data_loader: object, takes_one: bool, kernel: object, method: str) -> None:
    """Raise a sentence if there is one, for a kernel that sees all data."""
    if data_loader is not None and not takes_one:
        raise ValueError(
            "data_loader is for chain_method='vectorized' and kernels that see a part of the data at a time, not "
            f"for {type(kernel).__name__} with chain_method={method!r}: take OSGHMC, vectorised, or pass all "
            "of the data to run(...)."
        )


def check_shards(spread: object, shards: int, threads: int, chains: Mapping[str, int], **local: Any) -> None:
    """Raise a sentence for what chains in other processes cannot do, or shards without these."""
    if spread is None and shards != 1:
        raise ValueError(f"shards={shards!r} needs an executor that runs them: pass executor=.")
    if spread is None and threads != 1:
        raise ValueError(f"threads_per_shard={threads!r} needs an executor that runs shards: pass executor=.")
    (argument, count), *_ = chains.items()
    if spread is not None and count % shards:
        raise ValueError(f"{argument}={count} are not to be split into shards={shards}: take a multiple of it.")
    for name, value in local.items():
        if spread is not None and value:
            raise ValueError(f"{name} belongs to this process, and shards run in others: leave it out.")


def functions(consumers: Sequence[Consumer]) -> tuple[Consumer, ...]:
    """A list of consumers, checked."""
    if not isinstance(consumers, Sequence) or not all(callable(consumer) for consumer in consumers):
        raise ValueError(f"consumers={consumers!r}, expected a list of functions of an Iteration.")
    return tuple(consumers)


def stacked(initial_params: Sites | None, chains: int, starts: int) -> Sites | None:
    """Initial values with a leading chain dimension; chains share so many starts."""
    if initial_params is None:
        return None
    initial_params = {name: torch.as_tensor(value) for name, value in initial_params.items()}
    if chains == 1:
        return {name: value.unsqueeze(0) for name, value in initial_params.items()}
    for name, value in initial_params.items():
        if value.dim() == 0 or len(value) != starts:
            raise ValueError(
                f"initial_params['{name}'] has shape {tuple(value.shape)}, expected a leading dimension of "
                f"{starts}, one start for each {'super' * (starts < chains)}chain."
            )
    return {name: value.repeat_interleave(chains // starts, 0) for name, value in initial_params.items()}
