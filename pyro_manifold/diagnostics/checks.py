"""Checks of the arguments of functions on draws; each raises one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel


def check_real(values: Tensor, name: str, owner: str) -> None:
    """Raise an error unless ``values`` has finite real entries, at least one."""
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{owner}: {name} is a {type(values).__name__}, expected a torch tensor; wrap it in torch.as_tensor."
        )
    if values.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{owner}: {name} has dtype {values.dtype}, expected float32 or float64; use .double().")
    if values.numel() == 0:
        raise ValueError(f"{owner}: {name} is empty, its shape is {tuple(values.shape)}; give at least one entry.")
    if not torch.isfinite(values).all():
        raise ValueError(f"{owner}: {name} has entries that are not finite; drop the draws that contain them.")


def check_matrices(values: Tensor, name: str, owner: str) -> None:
    """Raise an error unless ``values`` is finite real matrices ``(..., n, p)``."""
    if isinstance(values, Tensor) and values.dim() < 2:
        raise ValueError(f"{owner}: {name} has shape {tuple(values.shape)}, expected matrices (..., n, p).")
    check_real(values, name, owner)


def check_draws(draws: Tensor, owner: str, name: str = "draws") -> None:
    """Raise an error unless ``draws`` is finite and real, ``(chains, draws, ..., n, p)``."""
    if isinstance(draws, Tensor) and draws.dim() < 4:
        raise ValueError(
            f"{owner}: {name} has shape {tuple(draws.shape)}, expected (chains, draws, ..., n, p); "
            f"take them from mcmc.get_samples(group_by_chain=True) or add the missing dimension with {name}[None]."
        )
    check_real(draws, name, owner)


def check_tall(values: Tensor, name: str, owner: str) -> None:
    """Raise an error unless the matrices can have p independent columns, p ≤ n."""
    n, p = values.shape[-2:]
    if p > n:
        raise ValueError(
            f"{owner}: {name} has shape {tuple(values.shape)}, but p = {p} columns of length n = {n} cannot be "
            "independent; transpose the matrices."
        )


def check_orthonormal(values: Tensor, name: str, owner: str) -> None:
    """Raise an error unless the matrices have orthonormal columns."""
    check_tall(values, name, owner)
    error = float(Stiefel().membership_error(values.detach()).max())
    if error > Stiefel.membership_tolerance(values.dtype):
        raise ValueError(
            f"{owner}: {name} must have orthonormal columns, but |XᵀX − I| reaches {error:.1e}; project with "
            "Stiefel().projection first if the error is only accumulated rounding."
        )


def are_rotations(values: Tensor) -> bool:
    """Return whether all matrices are orthonormal, square and of determinant 1."""
    manifold, (n, p) = SpecialOrthogonal(), values.shape[-2:]
    return n > 1 and manifold.accepts_shape(n, p) and bool(manifold.contains(values.detach()).all())


def check_reference(reference: Tensor, draws: Tensor, owner: str, name: str = "reference") -> Tensor:
    """Return the reference ``(n, p)`` or ``(..., n, p)`` in the draws' dtype, one matrix for each batch element."""
    check_matrices(reference, name, owner)
    expected: Sequence[int] = draws.shape[2:]
    if tuple(reference.shape) not in (tuple(expected), tuple(expected[-2:])):
        raise ValueError(
            f"{owner}: {name} has shape {tuple(reference.shape)}, expected {tuple(expected)} to match draws of shape "
            f"{tuple(draws.shape)}."
        )
    return reference.detach().to(draws).expand(expected)


def check_same_number(draws: Mapping[str, Tensor], owner: str) -> None:
    """Raise an error unless ``{site: (draws, ...)}`` has the same number of draws of each site, at least one."""
    counts = {name: len(value) if value.dim() else 0 for name, value in draws.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise ValueError(
            f"{owner} has {counts} draws, expected the same number of draws of each site, at least one, in the first "
            "dimension."
        )


def check_flag(**flags: object) -> None:
    """Raise an error unless each argument is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r}, expected True or False.")
