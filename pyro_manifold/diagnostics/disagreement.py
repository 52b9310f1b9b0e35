"""Disagreement between chains, chains that do not move, and kinetic temperatures that are too high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor

LARGEST_RHAT = 1.05
_FEWEST_DRAWS = 10  # a few rejections in a row are no evidence
_FEWEST_MOVES = 0.05  # of all iterations
_LARGEST_HEAT = 1.25  # ratio of temperatures: standard deviations are then too large by about an eighth


def disagreements(samples: Mapping[str, Tensor], largest_rhat: float = LARGEST_RHAT) -> dict[str, str]:
    """Return the sites on which chains disagree, and the chain furthest from the others.

    The furthest chain is the one whose mean is most standard deviations (within chains) from the median of the chains'
    means, over the entries of the site. A chain that never moved disagrees, unless all chains have the same constant
    value; R-hat alone would not show it if no chain moves.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        largest_rhat: split R-hat up to which chains count as agreeing.

    Returns:
        ``{site: sentence}``; for a single chain, sites on which its two halves disagree.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
        >>> draws[2] += 3
        >>> disagreements({"x": draws})
        {'x': 'R-hat 1.70, chain 2 is furthest from the others'}
    """
    found = {}
    for name, values in samples.items():
        chains, draws = values.shape[:2]
        if draws < 4 or not values.is_floating_point():
            continue
        values = values.detach().reshape(chains, draws, -1).double()
        if not values.numel():
            continue
        parts = [*_furthest(values, largest_rhat), *_standing_still(values)]
        if parts:
            found[name] = "; ".join(parts)
    return found


def _furthest(values: Tensor, largest_rhat: float) -> list[str]:
    spread = values.std(1).mean(0)
    moving = spread > 0
    if not moving.any():
        return []
    rhat = float(split_gelman_rubin(values[..., moving]).max())
    if rhat <= largest_rhat:
        return []
    if len(values) == 1:
        return [f"R-hat {rhat:.2f} between the halves of the only chain"]
    means = values.mean(1)
    distance = ((means - means.median(0).values).abs() / spread)[:, moving].amax(1)
    return [f"R-hat {rhat:.2f}, chain {int(distance.argmax())} is furthest from the others"]


def _standing_still(values: Tensor) -> list[str]:
    still = constant_chains(values)
    if not still.any() or bool((values == values[:1, :1]).all()):
        return []
    return [f"{named(still.nonzero().flatten().tolist())} never moved"]


def constant_chains(values: Tensor, rounding: float = 0.0) -> Tensor:
    """Return which chains have the same value at each draw, ``(chains,)``.

    Args:
        values: ``(chains, draws, ...)``.
        rounding: multiple of the rounding unit by which values may differ, relative to the first of each chain.
    """
    first = values[:, :1]
    if not rounding:
        return (values == first).flatten(1).all(1)
    return ((values - first).abs() <= rounding * torch.finfo(values.dtype).eps * first.abs()).flatten(1).all(1)


def stuck_chains(samples: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> list[int]:
    """Return the chains that moved in fewer than 5 % of iterations, as far as draws and statistics show.

    Args:
        samples: ``{site: (chains, draws, ...)}``; sites that were not kept are missing.
        statistics: ``{name: (chains, draws)}``, of which ``accepted`` is used; without it, the chains that never moved.

    Returns:
        Indices of the chains; none if there are fewer than 10 draws.

    Examples:
        >>> import torch
        >>> stuck_chains({"x": torch.stack([torch.arange(10.0), torch.ones(10)])}, {})
        [1]
    """
    if "accepted" in statistics:
        moved = statistics["accepted"].double().mean(1)
        stuck = moved < _FEWEST_MOVES if statistics["accepted"].shape[1] >= _FEWEST_DRAWS else moved < 0
        stuck = stuck.cpu() | _moved_by_rounding(samples, statistics)
        return stuck.nonzero().flatten().tolist()
    evidence = [value for value in [*samples.values(), statistics.get("lp")] if value is not None and value.numel()]
    flags = [constant_chains(value).cpu() for value in evidence if value.shape[1] >= _FEWEST_DRAWS]
    return torch.stack(flags).all(0).nonzero().flatten().tolist() if flags else []


def _moved_by_rounding(samples: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> Tensor:
    """Return the chains whose moves change no site by more than rounding, as with a step size that has collapsed."""
    kept = [value for value in samples.values() if value.numel() and value.is_floating_point()]
    evidence = [*kept, *([statistics["lp"]] if "lp" in statistics else [])]
    if not kept or kept[0].shape[1] < _FEWEST_DRAWS:
        return torch.tensor(False)
    return torch.stack([constant_chains(value, rounding=100.0).cpu() for value in evidence]).all(0)


def temperature_of_hot_chains(statistics: Mapping[str, Tensor]) -> tuple[float, float] | None:
    """Return the kinetic temperature of chains in which it is too high, and the intended one; None without such chains.

    Args:
        statistics: ``{name: (chains, draws)}``, of which ``kinetic_temperature`` and ``temperature`` are used.

    Examples:
        >>> import torch
        >>> asked, measured = torch.ones(2, 50), torch.tensor([[1.0], [3.0]]).expand(2, 50)
        >>> temperature_of_hot_chains({"temperature": asked, "kinetic_temperature": measured})
        (3.0, 1.0)
    """
    if "kinetic_temperature" not in statistics or statistics["temperature"].shape[1] < _FEWEST_DRAWS:
        return None
    return _above(*(statistics[name].double() for name in ("kinetic_temperature", "temperature")))


def temperature_of_hottest_coordinate(statistics: Mapping[str, Tensor]) -> tuple[float, float] | None:
    """Return the largest kinetic temperature of a coordinate and the intended one, if the first is too high.

    It is the mean over chains and the second half of the draws: the coordinate is chosen in the first half.

    Args:
        statistics: ``{name: (chains, draws)}``, of which ``hottest_kinetic_temperature`` and ``temperature`` are used.

    Returns:
        The two temperatures; None if it is not too high, or if there are fewer than 20 draws.

    Examples:
        >>> import torch
        >>> asked, measured = torch.ones(2, 50), torch.cat([torch.ones(2, 20), torch.full((2, 30), 1.5)], 1)
        >>> temperature_of_hottest_coordinate({"temperature": asked, "hottest_kinetic_temperature": measured})
        (1.5, 1.0)
    """
    if "hottest_kinetic_temperature" not in statistics or statistics["temperature"].shape[1] < 2 * _FEWEST_DRAWS:
        return None
    measured, asked = (statistics[name].double() for name in ("hottest_kinetic_temperature", "temperature"))
    half = measured.shape[1] // 2
    return _above(*(value[:, half:].mean(0, keepdim=True) for value in (measured, asked)))


def _above(measured: Tensor, intended: Tensor) -> tuple[float, float] | None:
    """Return means over the chains, ``(chains, draws)``, whose measured temperature exceeds the limit significantly."""
    # Batch means are nearly independent even if draws are not.
    parts = [part.mean(1) for part in (measured - _LARGEST_HEAT * intended).chunk(_FEWEST_DRAWS, 1)]
    excess = torch.stack(parts, 1)
    hot = (excess.mean(1) > 4 * excess.std(1) / len(parts) ** 0.5) & (intended.mean(1) > 0)
    return (float(measured[hot].mean()), float(intended[hot].mean())) if bool(hot.any()) else None


def named(chains: Sequence[int], most: int = 8) -> str:
    """Return a phrase such as "chain 3" or "chains 0, 2 and 5", with the first few of many."""
    numbers = [str(chain) for chain in chains]
    if len(numbers) == 1:
        return f"chain {numbers[0]}"
    if len(numbers) > most:
        return f"chains {', '.join(numbers[:most])} and {len(numbers) - most} more"
    return f"chains {', '.join(numbers[:-1])} and {numbers[-1]}"
