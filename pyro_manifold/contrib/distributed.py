"""Data-parallel optimiser steps, from the gradients of several processes."""

from __future__ import annotations

import warnings
import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import pyro
import torch
import torch.distributed
from pyro.optim import PyroOptim
from torch import Tensor

Described = tuple[tuple[int, ...], str]
"""Shape and dtype of a parameter."""


class DistributedOptimizer(PyroOptim):
    r"""A `PyroOptim` whose steps use the mean of the gradients of all processes of `torch.distributed`.

    $$ G = \frac1R \sum_{r=1}^R G_r $$

    Each of the R processes runs `SVI` on its own data or minibatches and takes the step of the optimiser with G. The
    ELBO of each must estimate that of all data: put the data into a plate of their total size,
    ``pyro.plate(name, size, subsample_size=len(batch))``. The mean gradient is then an unbiased estimate too, with less
    noise. A parameter that a process did not use in a step has gradient zero there.

    If a step has parameters that are new to any process, all processes take the values of process 0. In that step they
    also use the gradients of process 0 alone, since those of the others were computed at other values. From then on
    parameters and optimiser states are equal in all processes, bit for bit on equal processors and libraries. A step
    costs one all-reduce of all gradients and one of five numbers. All processes must make the same number of steps.

    Args:
        optim: the optimiser, of this package or Pyro's. Clipping acts on the mean. Keep a reference to a scheduler to
            call its ``step()``; save and load in every process.

    Raises:
        ValueError: for an ``optim`` that is not a `PyroOptim`; in a step, for parameters that differ in shape, have no
            name in the param store, or are missing in a process.
        RuntimeError: in a step, without a process group.

    Source: Li et al. 2020, PyTorch Distributed, arXiv 2006.15704, for data-parallel steps by averaged gradients.

    Examples:
        >>> from pyro_manifold.optim import RiemannianAdam
        >>> optim = DistributedOptimizer(RiemannianAdam({"lr": 0.01}))
    """

    def __init__(self, optim: PyroOptim) -> None:
        if not isinstance(optim, PyroOptim) or isinstance(optim, DistributedOptimizer):
            raise ValueError(
                f"DistributedOptimizer: optim is {optim!r:.60}, expected an optimiser for SVI such as "
                "pyro_manifold.optim.RiemannianAdam({'lr': 0.01})."
            )
        super().__init__(optim.pt_optim_constructor, optim.pt_optim_args, optim.pt_clip_args)
        self.optim_objs, self.grad_clip = optim.optim_objs, optim.grad_clip  # attributes that users of SVI inspect
        self._optim = optim
        self._shared: dict[str, weakref.ref[Tensor]] = {}
        self._started = False

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """Take one step of the parameters that any process used; ``params`` are those of this process."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise RuntimeError(
                "DistributedOptimizer: there is no process group; start the processes by torchrun and call "
                "torch.distributed.init_process_group('gloo') in each."
            )
        used = _named(params)
        device = next((value.device for value in used.values()), torch.device("cpu"))
        alike, is_new, same_random_numbers = self._compare(used, device)
        if not self._started and same_random_numbers and torch.distributed.get_world_size() > 1:
            warnings.warn(
                "All processes have the same RNG state, so that their minibatches and the noise of the guide may be "
                "equal and averaging their gradients reduces no noise: call pyro.set_rng_seed(seed + rank) in each.",
                stacklevel=3,
            )
        self._started = True
        everywhere = used if alike else _used_anywhere(used)
        names = sorted(everywhere)
        gradients = {name: everywhere[name].grad for name in names}
        for of_a_kind in _by_kind(everywhere):
            values = [everywhere[name] for name in of_a_kind]
            if is_new:
                _take_from_first(values)
            _exchange(values, from_first=is_new)
        self._shared.update({name: weakref.ref(everywhere[name]) for name in names})
        self._optim([everywhere[name] for name in names], *args, **kwargs)
        for name in set(names) - set(used):
            # SVI clears the gradients of the parameters that it used itself.
            everywhere[name].grad = None if gradients[name] is None else torch.zeros_like(everywhere[name])

    def _compare(self, used: dict[str, Tensor], device: torch.device) -> tuple[bool, bool, bool]:
        """Return whether all processes used the same parameters, any is new to one, and RNG states are equal."""
        described = zlib.crc32(repr(sorted((name, _described(value)) for name, value in used.items())).encode())
        random = 0 if self._started else zlib.crc32(torch.get_rng_state().numpy().tobytes())
        # Compared by tensor: a param store that was cleared or loaded has other tensors under the same names.
        new = any(name not in self._shared or self._shared[name]() is not value for name, value in used.items())
        found = torch.tensor([described, -described, random, -random, int(new)], device=device)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        largest, least, largest_random, least_random, any_new = found.tolist()
        return largest == -least, bool(any_new), largest_random == -least_random

    def get_state(self) -> dict[str, Any]:
        """Return the state of the wrapped optimiser."""
        state: dict[str, Any] = self._optim.get_state()
        return state

    def set_state(self, state_dict: dict[str, Any]) -> None:
        """Set the state of the wrapped optimiser; call it in each process."""
        self._optim.set_state(state_dict)


def _named(params: Iterable[Tensor]) -> dict[str, Tensor]:
    store, named = pyro.get_param_store(), {}
    for value in params:
        name = store.param_name(value)
        if name is None:
            raise ValueError(
                f"DistributedOptimizer: a parameter of shape {tuple(value.shape)} has no name in Pyro's param store, "
                "which identifies it in all processes: call pyro.settings.set(module_local_params=False)."
            )
        named[name] = value
    return dict(sorted(named.items()))


def _described(value: Tensor) -> Described:
    return tuple(value.shape), str(value.dtype)


def _used_anywhere(used: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, in this process, of the parameters that any process used.

    Raises:
        ValueError: in all processes, if one lacks a parameter, or has it with another shape or dtype.
    """
    known = pyro.get_param_store()._params  # unconstrained values
    mine = {name: _described(value) for name, value in {**known, **used}.items()}
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, (sorted(used), mine))
    names = sorted({name for theirs, _ in found for name in theirs})
    for name in names:
        for rank, (_, described) in enumerate(found):
            if name not in described:
                raise ValueError(
                    f"Process {rank} has no parameter '{name}', which another process has used: create all parameters "
                    "in each process before the first step, such as by running the guide once."
                )
            first = next(other[name] for _, other in found if name in other)
            if described[name] != first:
                raise ValueError(
                    f"Parameter '{name}' has shape and dtype {described[name]} in process {rank}, but {first} in "
                    "another: run the same model and guide in all processes."
                )
    return {name: used.get(name, known.get(name)) for name in names}


def _by_kind(params: dict[str, Tensor]) -> list[list[str]]:
    """Return the names of parameters grouped by dtype and device, so that each group can be sent as one vector."""
    kinds: dict[Any, list[str]] = {}
    for name in sorted(params):
        kinds.setdefault((str(params[name].dtype), str(params[name].device)), []).append(name)
    return [kinds[kind] for kind in sorted(kinds)]


@torch.no_grad()
def _take_from_first(params: list[Tensor]) -> None:
    flat = torch.cat([value.flatten() for value in params])
    torch.distributed.broadcast(flat, 0)
    for value, part in zip(params, flat.split([value.numel() for value in params]), strict=True):
        value.copy_(part.view_as(value))


@torch.no_grad()
def _exchange(params: list[Tensor], *, from_first: bool) -> None:
    """Replace gradients by their mean over processes, or by those of process 0; unused parameters keep None."""
    used = params[0].new_tensor([float(value.grad is not None) for value in params])
    gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in params]
    flat = torch.cat([used, *[gradient.to(used).flatten() for gradient in gradients]])
    if from_first:
        torch.distributed.broadcast(flat, 0)
    else:
        torch.distributed.all_reduce(flat)
        flat[len(params) :] /= torch.distributed.get_world_size()
    parts = flat[len(params) :].split([value.numel() for value in params])
    for value, part, count in zip(params, parts, flat[: len(params)].tolist(), strict=True):
        value.grad = part.view_as(value).clone() if count else None
