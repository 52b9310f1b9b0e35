"""All kernels, one line each: `test_conformance.py` asks the same of every one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import MatrixLangevin
from pyro_manifold.infer import GHMC, MSD, NNSGHMC, OHMC, OSGHMC, PSGLD, SGHMC, SGLD, SGNHT, GeodesicSlice
from pyro_manifold.infer.mcmc import Kernel
from tests.infer.mcmc.random_walk import RandomWalk

ROWS, PARTS = 20, 10
DATA = torch.linspace(-1.0, 2.0, ROWS * 2, dtype=torch.float64).reshape(ROWS, 2)
NOISE = 0.7
CONCENTRATION = torch.tensor([[3.0, 0.0], [0.0, 1.5], [0.5, 0.0]], dtype=torch.float64)


def flat(subsample_size=None):
    """Rows about an unknown mean."""
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    data = DATA.to(mean)
    with pyro.plate("rows", ROWS, subsample_size=subsample_size) as rows:
        pyro.sample("y", dist.Normal(mean, NOISE).to_event(1), obs=data[rows])


def matrix(subsample_size=None):
    """The same beside an orthonormal matrix."""
    pyro.sample("U", MatrixLangevin(CONCENTRATION.to(torch.get_default_dtype())))
    flat(subsample_size)


@dataclass(frozen=True)
class OnParts:
    """A model on a part of its rows at each step."""

    model: Callable[..., None]

    def __call__(self):
        self.model(PARTS)


@dataclass(frozen=True)
class Case:
    """A kernel and what it can do.

    Attributes:
        kernel: its class.
        options: of its constructor.
        model: the widest of `flat` and `matrix` that it takes.
        minibatches: whether it takes a part of the data at each step.
        bias: of standard deviations by a step that is not adjusted, as a share of them, at most.
        thinning: iterations of a draw, for kernels whose draws are close together.
        native: the graph that is native code when a run lasts; None where there is none of the whole.
    """

    kernel: type[Kernel]
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[..., None] = matrix
    minibatches: bool = False
    bias: float = 0.0
    thinning: int = 1
    native: str | None = "trajectory"

    @property
    def exact(self) -> bool:
        """Whether it draws from distributions of matrices without bias, as it is by default."""
        return self.model is matrix and not self.bias and not self.options

    def make(self, model: Any, **more: Any) -> Kernel:
        return self.kernel(model, **{**self.options, **more})

    def make_short(self, model: Any, **more: Any) -> Kernel:
        """Make it with few steps an iteration, for what does not depend on how far one goes."""
        return self.make(model, **({"num_steps": 2} if "num_steps" in self.options else {}), **more)


KERNELS = {
    "OHMC": Case(OHMC),
    "OHMC, dense": Case(OHMC, {"full_mass": True}),
    "OHMC, persistent": Case(OHMC, {"persistence": 0.7, "num_steps": 4, "step_size": 0.2}),
    "GHMC": Case(GHMC),
    "MSD": Case(MSD, {"step_size": 0.3}, flat, bias=0.03),
    "MSD, adjusted": Case(MSD, {"step_size": 0.8, "metropolis": True, "num_steps": 2}, flat),
    "GeodesicSlice": Case(GeodesicSlice, native=None),
    "RandomWalk, of the tests": Case(RandomWalk, {"target": 0.3}, thinning=4),
    "SGLD": Case(SGLD, {"step_size": 2e-3, "num_steps": 20}, matrix, True, 0.05, 2, "steps"),
    "PSGLD": Case(PSGLD, {"step_size": 0.03, "num_steps": 20}, matrix, True, 0.1, 2, "steps"),
    "SGHMC": Case(SGHMC, {"step_size": 0.02, "num_steps": 20}, flat, True, 0.05, 1, "steps"),
    "OSGHMC": Case(OSGHMC, {"step_size": 0.02, "num_steps": 20}, matrix, True, 0.05, 1, "steps"),
    "SGNHT": Case(SGNHT, {"step_size": 0.02, "num_steps": 20}, matrix, True, 0.05, 1, "steps"),
    "NNSGHMC": Case(
        NNSGHMC, {"sampler": "gaussian", "step_size": 5e-3, "num_steps": 20}, flat, True, 0.1, 2, native=None
    ),
}


def over(*short: str, where: Callable[[Case], Any] = lambda case: True) -> pytest.MarkDecorator:
    """Parametrise a test over the kernels that can do something, in the long set but for those named in ``short``."""
    names = [name for name, case in KERNELS.items() if where(case)]
    assert {*short} <= {*names}
    return pytest.mark.parametrize(
        "name", [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]
    )
