r"""Supports that depend on other sites, such as that of x ~ Uniform(0, a).

Pyro makes the transform of a site to unconstrained space once, from the support in one run of the model. If the support
depends on another site, the transform is part of the density: it is made from the support at each value,

$$ x = t_a(z), \qquad \log p(a, z) = \log p(a) + \log p(x \mid a) + \log |\det \partial t_a(z) / \partial z|. $$
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints

from pyro_manifold.compiled import Verified, vectorise
from pyro_manifold.density.batched import PotentialFunction, Sites
from pyro_manifold.density.same_sites import OtherSitesError
from pyro_manifold.density.sites import latent_sites
from pyro_manifold.density.supports import parameters, with_true_support
from pyro_manifold.distributions import manifold_of

_SCALES = (0.5, -0.5, 2.0, -2.0)  # both ways, as a support may differ on the two sides of a branch
_REMEDY = "sample a variable with a fixed support and transform it, such as x = a * u with u ~ Uniform(0, 1)"


class SummedOutSupportError(OtherSitesError):
    """Error of a support that depends on a discrete site, which is summed out."""


def refuse_dependent(names: Iterable[str], where: str) -> None:
    """Raise ValueError for sites whose support depends on other sites, where this is not supported."""
    for name in names:
        separator = " " if where.endswith("or") else ": "
        raise ValueError(f"Site '{name}' has a support that depends on other sites, which {where}{separator}{_REMEDY}.")


def refuse_for_kernels_of_pyro(program: Callable[[], Any]) -> None:
    """Raise ValueError for sites whose support Pyro's own kernels would fix in one run of the model.

    Args:
        program: the model with its arguments.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            nodes = poutine.block(poutine.trace(program).get_trace)().nodes
    except Exception:  # Pyro says it, where the model runs
        return
    names = [name for name, site in latent_sites(nodes).items() if not site["fn"].support.is_discrete]
    refuse_dependent(dependent_supports(program, nodes, names), "Pyro's kernels do not follow: use OHMC, or")


def refuse_for_guides(program: Callable[[], Any], nodes: Mapping[str, Any]) -> None:
    """Raise ValueError for sites of which automatic guides have another support than the model.

    Args:
        program: the model with its arguments.
        nodes: the sites of a run.
    """
    latent = latent_sites(nodes)
    names = [name for name, site in latent.items() if not site["fn"].has_enumerate_support]
    refuse_dependent(dependent_supports(program, nodes, names), "automatic guides do not follow")
    for name in names:
        fn = latent[name]["fn"]
        if with_true_support(fn) is not fn:
            raise ValueError(
                f"Site '{name}' is a transformed distribution whose declared support, {fn.support}, is wider than its "
                "own, and automatic guides take the former: sample the base distribution and transform the value, "
                "such as x = a + b * e with e ~ Exponential(1)."
            )


# ---- the transform as a part of the density ----------------------------------------------------------------------


class _ToSupport(Messenger):
    """Handler that takes the values of some sites, which condition the model, as unconstrained ones.

    It has to be outside of the handler that conditions the model.

    Args:
        names: the sites.

    Attributes:
        values: their values in the model.
        log_jacobian: sum of the log determinants of their transforms.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names
        self.values: Sites = {}
        self.log_jacobian: Tensor | float = 0.0

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name, z = msg["name"], msg["value"]
        if name not in self._names:
            return
        transform = biject_to(msg["fn"].support)
        x = transform(z)
        if x.shape != z.shape:
            raise SummedOutSupportError(
                f"Site '{name}' has a support that depends on a discrete site, which is summed out: write the sum "
                "into the density (such as MixtureSameFamily), or sample a variable with a fixed support."
            )
        self.log_jacobian = self.log_jacobian + transform.log_abs_det_jacobian(z, x).sum()
        self.values[name] = msg["value"] = x


def with_supports(potential_fn: PotentialFunction, names: Collection[str], sites: Sites) -> Tensor:
    """Evaluate a potential energy that conditions a model on its sites, with some of them in unconstrained space."""
    with _ToSupport(names) as found:
        return potential_fn(sites) - found.log_jacobian


class Separately(Transform):
    """Placeholder of the transform of one site, which exists only together with the values of other sites."""

    domain = codomain = constraints.real
    bijective = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def _call(self, x: Tensor) -> Tensor:
        refuse_dependent([self._name], "Pyro's sequential sampler does not follow; sample chains together, or")
        return x

    _inverse = _call

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Raise ValueError."""
        return self._call(x)


class _Supports(Messenger):
    """Handler that records the supports of sites."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names
        self.found: dict[str, Any] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self._names:
            self.found[msg["name"]] = msg["fn"].support


class JointTransform:
    """Map between unconstrained and constrained values of all sites of a model, for one chain or any number of them.

    Args:
        program: the model with its arguments.
        shapes: shapes of the sites whose support depends on other sites.
        transforms: transforms to unconstrained space of the others, without those on manifolds.

    Attributes:
        names: names of the former.
    """

    def __init__(
        self, program: Callable[[], Any], shapes: Mapping[str, torch.Size], transforms: Mapping[str, Transform]
    ) -> None:
        self._program, self._shapes, self._transforms = program, dict(shapes), dict(transforms)
        self.names = list(shapes)
        self._functions: dict[Any, Verified] = {}

    def values(self, sites: Sites) -> Sites:
        """Return the sites as the model has them."""
        known = {name: self._transforms[name].inv(x) if name in self._transforms else x for name, x in sites.items()}
        return self._mapped(known, self._to_support)

    def positions(self, values: Sites) -> Sites:
        """Return positions from values of the sites in the model: the inverse of `values`."""
        found = self._mapped(values, self._to_coordinates)
        return {name: self._transforms[name](x) if name in self._transforms else x for name, x in found.items()}

    def _to_support(self, sites: Sites) -> Sites:
        with poutine.block(), pyro.validation_enabled(False), _ToSupport(self.names) as found:
            poutine.condition(self._program, sites)()
        return found.values

    def _to_coordinates(self, values: Sites) -> Sites:
        with poutine.block(), pyro.validation_enabled(False), _Supports(self.names) as supports:
            poutine.condition(self._program, values)()
        return {name: biject_to(supports.found[name]).inv(values[name]) for name in self.names}

    def _mapped(self, sites: Sites, of_one: Callable[[Sites], Sites]) -> Sites:
        """Apply a function of the sites of one chain to those of all chains."""
        name, shape = next(iter(self._shapes.items()))
        leading = sites[name].shape[: sites[name].dim() - len(shape)]
        if not leading:
            return {**sites, **of_one(sites)}
        names, moved = sorted(sites), sorted(self.names)
        columns = [sites[name].flatten(0, len(leading) - 1) for name in names]

        def flat(*columns: Tensor) -> tuple[Tensor, ...]:
            found = of_one(dict(zip(names, columns, strict=True)))
            return tuple(found[name] for name in moved)

        key = (of_one.__name__, tuple((x.shape[1:], x.dtype, x.device) for x in columns))
        if key not in self._functions:
            with torch.no_grad():  # compared elsewhere too, as a trace may freeze what is computed outside of torch
                self._functions[key] = vectorise(flat, columns, subject=None, folded=False)
        found = self._functions[key](*columns)
        return {**sites, **{name: x.reshape(sites[name].shape) for name, x in zip(moved, found, strict=True)}}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_functions": {}}  # graphs are made again


# ---- detection ----------------------------------------------------------------------------------------------------


def dependent_supports(program: Callable[[], Any], nodes: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the sites whose support depends on other sites.

    Bounds are differentiated with respect to the sites, and compared between runs with other values, as bounds may be
    computed without gradients. The state of the random number generator is left as it was.

    Args:
        program: the model with its arguments.
        nodes: the sites of a run.
        names: the continuous latent sites.
    """
    supports = {name: nodes[name]["fn"].support for name in names}
    candidates = [name for name, support in supports.items() if parameters(support)]
    if not candidates:
        return []
    found: set[str] = set()
    with torch.random.fork_rng(devices=[]), pyro.validation_enabled(False), poutine.block(), torch.enable_grad():
        for number, sites in enumerate(_points(nodes, supports)):
            handler = _Elsewhere(sites, candidates)
            try:
                handler(program)()
            except Exception:  # a model can fail in any way where it was not meant to be evaluated
                continue
            for name, support in handler.supports.items():
                here = parameters(support)
                # At the values of the run itself, bounds may differ by rounding.
                moved = number > 0 and not _equal(here, parameters(supports[name]))
                if moved or _depends(here, handler.leaves):
                    found.add(name)
    return [name for name in candidates if name in found]


def _points(nodes: Mapping[str, Any], supports: Mapping[str, Any]) -> Iterator[Sites]:
    """Yield unconstrained values, or points of manifolds: those of the run, and others near them."""
    first = {name: nodes[name]["value"].detach() for name in supports}
    for scale in (0.0, *_SCALES):
        noise, sites = torch.Generator().manual_seed(0), {}
        for name, x in first.items():
            manifold = manifold_of(supports[name])
            z = x if manifold is not None else biject_to(supports[name]).inv(x)
            z = z + scale * torch.randn(z.shape, generator=noise, dtype=z.dtype, device="cpu").to(z)
            sites[name] = z if manifold is None else manifold.projection(z)
        yield sites


class _Elsewhere(Messenger):
    """Handler that runs a model at given unconstrained values, with other values of discrete sites."""

    def __init__(self, sites: Sites, candidates: Collection[str]) -> None:
        super().__init__()
        self.leaves = {name: x.detach().clone().requires_grad_() for name, x in sites.items()}
        self._candidates = candidates
        self.supports: dict[str, Any] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name, fn = msg["name"], msg["fn"]
        if name in self.leaves:
            if name in self._candidates:
                self.supports[name] = fn.support
            leaf, manifold = self.leaves[name], manifold_of(fn.support)
            msg["value"] = leaf if manifold is not None else biject_to(fn.support)(leaf)
        elif not msg["is_observed"] and getattr(fn, "has_enumerate_support", False):
            support = fn.enumerate_support(expand=False)
            support = support.reshape(len(support), *fn.event_shape)
            msg["value"] = support[torch.randint(len(support), fn.batch_shape).to(support.device)]


def _depends(numbers: list[Any], leaves: Sites) -> bool:
    moving = [x.sum() for x in numbers if torch.is_tensor(x) and x.requires_grad]
    if not moving:
        return False
    gradients = torch.autograd.grad(
        torch.stack(moving).sum(), list(leaves.values()), allow_unused=True, retain_graph=True
    )
    return any(gradient is not None for gradient in gradients)


def _equal(here: list[Any], there: list[Any]) -> bool:
    return len(here) == len(there) and all(
        torch.equal(torch.as_tensor(x).detach(), torch.as_tensor(y).detach()) for x, y in zip(here, there, strict=True)
    )
