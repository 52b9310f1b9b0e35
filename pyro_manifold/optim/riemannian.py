"""Base class of the Riemannian optimisers: the manifold of each parameter, and the loop over parameters."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions.constraints import Constraint
from torch.optim import Optimizer

from pyro_manifold.distributions import HouseholderStiefelConstraint, manifold_of
from pyro_manifold.manifolds import Euclidean, Manifold

State = dict[str, Tensor]


class RiemannianOptimizer(Optimizer):
    r"""A `torch.optim.Optimizer` whose points stay on manifolds.

    A subclass states one update in terms of a `Manifold`. The gradient G of the entries is projected onto the tangent
    space, the directions of movement within the manifold, $g = P_X(G)$; steps are taken by the retraction
    $R_X(v)$, a point of the manifold near X + v; and state such as momentum is transported, T(v), by projection
    onto the tangent space at the new point. For parameters without a manifold (`Euclidean`) the same formulas are the
    usual optimiser, so one optimiser serves all the parameters of a model.

    A parameter's manifold is the ``manifold`` option of its group, or else that of its constraint in Pyro's param
    store at its first step (stiefel, grassmann, sphere), or else Euclidean. In the store a parameter equals its own
    unconstrained value as long as it lies on the manifold, and the derivative of Pyro's transform there is the
    projection onto the tangent space, so both have the same gradient.

    Raises:
        ValueError: for a parameter that is not on its manifold, or a loaded state that does not match.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._manifolds: dict[Tensor, Manifold] = {}
        self._versions: dict[Tensor, int] = {}
        super().__init__(params, defaults)

    @abstractmethod
    def initial_state(self, point: Tensor, options: dict[str, Any]) -> State:
        """Return the optimiser state of one parameter before its first step."""

    @abstractmethod
    def update(
        self, manifold: Manifold, point: Tensor, gradient: Tensor, state: State, options: dict[str, Any]
    ) -> tuple[Tensor, State]:
        """Return the next point and state of one parameter, from the gradient of its entries.

        Transport is projection onto the new tangent space. So a vector may be stored untransported and projected at the
        next step together with the gradient there.
        """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group as in torch, with the additional option ``manifold``."""
        # Outside the options of the group, since these are part of state_dict, which should hold plain data.
        manifold = param_group.get("manifold")
        super().add_param_group({key: value for key, value in param_group.items() if key != "manifold"})
        if manifold is None:
            return
        if not isinstance(manifold, Manifold):
            raise ValueError(f"{type(self).__name__}: manifold={manifold!r}, expected a manifold like Stiefel().")
        for point in self.param_groups[-1]["params"]:
            _check_point(manifold, point)
            self._manifolds[point] = manifold

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_manifolds": self._manifolds, "_versions": {}}

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Take one step of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for point in group["params"]:
                if point.grad is None:
                    continue
                manifold = self._place(point)
                state = self.state[point] or self.initial_state(point, group)
                end, self.state[point] = self.update(manifold, point, point.grad, state, group)
                point.copy_(end)
                self._versions[point] = point._version
        return loss

    def _place(self, point: Tensor) -> Manifold:
        """Return the manifold of a parameter; the parameter is projected onto it if it was set to a value off it."""
        if point not in self._manifolds:
            self._manifolds[point] = _manifold_of_parameter(point)
        manifold = self._manifolds[point]
        if self._versions.get(point) != point._version:
            _check_shape(manifold, point)
            if point not in self._versions and has_components(manifold, point):
                _warn_of_components(point)
            # The value of a Pyro parameter is the nearest point of the manifold, so this projection does not change it.
            if not bool(manifold.contains(point).all()):
                point.copy_(manifold.projection(point))
        return manifold

    def keeps(self, point: Tensor) -> bool:
        """Return whether steps keep a parameter on a manifold; false before its first step."""
        return not isinstance(self._manifolds.get(point, Euclidean(0)), Euclidean)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as in torch, after a check of its names and shapes."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
            for point, index in zip(group["params"], saved["params"], strict=False):
                self._check_state(point, state_dict["state"].get(index, {}), {**group, **saved})
        super().load_state_dict(state_dict)

    def _check_state(self, point: Tensor, state: State, options: dict[str, Any]) -> None:
        owner = f"{type(self).__name__}: the loaded state of {_name(point)}"
        expected = self.initial_state(point, options)
        if state and state.keys() != expected.keys():
            raise ValueError(
                f"{owner} holds {sorted(state)}, expected {sorted(expected)}: it was saved by another optimiser."
            )
        for key, value in state.items():
            if value.shape != expected[key].shape:
                raise ValueError(
                    f"{owner} has '{key}' of shape {tuple(value.shape)}, expected {tuple(expected[key].shape)}: "
                    "it was saved for another rank or model; load the parameters that belong to it first."
                )


def entry_scale(manifold: Manifold, point: Tensor) -> float:
    """Return the size of an entry of a point, the unit of steps that are η in each coordinate.

    An orthonormal n×p matrix has entries of size 1/√n, so steps of 0.01 in each would rotate every column of a 10⁴×p
    matrix by a radian, while 0.01 suits the other parameters of the same model.
    """
    return manifold.entry_scale(*point.shape[point.ndim - manifold.event_dim :])


def parameter_groups(module: PyroModule) -> list[dict[str, Any]]:
    """Return the parameters of a `PyroModule`, such as a guide, with their manifolds, for a torch optimiser.

    It is needed under ``pyro.settings.set(module_local_params=True)``, where Pyro's param store does not hold the
    parameters.

    Args:
        module: the module.

    Returns:
        A parameter group for each parameter, ``{"params": [parameter], "manifold": manifold}``, with `Euclidean` for
        parameters without a manifold.

    Examples:
        >>> from pyro.nn import PyroParam
        >>> from pyro_manifold import constraints
        >>> module = PyroModule()
        >>> module.loadings = PyroParam(torch.eye(3, 2), constraint=constraints.stiefel)
        >>> [(group["manifold"], len(group["params"])) for group in parameter_groups(module)]
        [(Stiefel(), 1)]
    """
    constraint_of = {
        getattr(part, f"{name}_unconstrained"): constraint
        for part in module.modules()
        if isinstance(part, PyroModule)
        for name, (constraint, _) in part._pyro_params.items()
    }
    manifolds = {point: _manifold_of_constraint(constraint_of.get(point)) for point in module.parameters()}
    return [{"params": [point], "manifold": manifold} for point, manifold in manifolds.items()]


def _manifold_of_parameter(point: Tensor) -> Manifold:
    store = pyro.get_param_store()
    return _manifold_of_constraint(store._constraints.get(store.param_name(point)))


def _manifold_of_constraint(constraint: Constraint | None) -> Manifold:
    # Under HouseholderTransform the unconstrained value is a vector of unconstrained numbers.
    if constraint is None or isinstance(constraint, HouseholderStiefelConstraint):
        return Euclidean(0)
    return manifold_of(constraint) or Euclidean(0)


def _check_shape(manifold: Manifold, point: Tensor) -> None:
    if not manifold.accepts_shape(*point.shape[point.ndim - manifold.event_dim :]):
        raise ValueError(
            f"{_name(point)} has shape {tuple(point.shape)}, but points of {manifold!r} are {manifold.shape_in_words}: "
            "transpose it, choose a lower rank, or give it no manifold."
        )
    if not isinstance(manifold, Euclidean) and point.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{_name(point)} on {manifold!r} is of {point.dtype}, expected torch.float32 or torch.float64, in which it "
            "stays on its manifold: keep it so, and let torch.autocast compute in half precision."
        )


def _check_point(manifold: Manifold, point: Tensor) -> None:
    _check_shape(manifold, point)
    error = float(manifold.membership_error(point.detach()).max())
    if not error <= manifold.membership_tolerance(point.dtype):
        raise ValueError(
            f"{_name(point)} is not on {manifold!r}: it is off by {error:.1e}; "
            f"start at {type(manifold).__name__}().projection(value)."
        )


def has_components(manifold: Manifold | None, value: Tensor) -> bool:
    """Return whether values are on a manifold of several components, as square orthonormal matrices are."""
    return manifold is not None and manifold.components(*value.shape[value.ndim - manifold.event_dim :]) > 1


def _warn_of_components(point: Tensor) -> None:
    name = _name(point)
    warnings.warn(
        f"{name[0].upper()}{name[1:]} is a square orthonormal matrix, and steps on the manifold keep its determinant, "
        "1 or -1, while the minimum may have the other: run again from a value with one column reversed, and keep the "
        "better of the two.",
        stacklevel=2,
    )


def _name(point: Tensor) -> str:
    name = pyro.get_param_store().param_name(point)
    return f"parameter '{name}'" if name else f"a parameter of shape {tuple(point.shape)}"
