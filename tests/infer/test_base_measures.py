"""Evidences of sites on every manifold, by every estimate, against quadrature in one angle.

In three dimensions the first coordinate t of a uniform unit vector, and so the first entry of uniform orthonormal
matrices and of rotations, is uniform on [-1, 1] (Archimedes). Priors and likelihoods here are functions of t alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from scipy.integrate import quad

from pyro_manifold.diagnostics import guide_khat
from pyro_manifold.distributions import (
    Bingham,
    GrassmannLangevin,
    GrassmannUniform,
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixFisher,
    MatrixLangevin,
    SpecialOrthogonalUniform,
    StiefelUniform,
    VonMisesFisher,
    constraints,
)
from pyro_manifold.infer import MCMC, OHMC, SMC, ReplicaExchange
from tests.infer.smc.test_smc import assert_evidence

AXIS = torch.eye(3)[0].double()
UNIT = torch.diag(AXIS)
LIKELIHOOD = 3.0  # exp(3 t²)


def entry(matrix):
    return matrix[..., 0, 0]


def first(vector):
    return vector[..., 0]


def flat(t):
    return 1.0


def projected(t):
    """Density of the direction of N(e₁, I), by its radius."""
    return quad(lambda r: r * r * np.exp(-(r * r) / 2 + r * t), 0, np.inf)[0]


@dataclass(frozen=True)
class Case:
    """A prior, the entry t of a draw, and the density of t up to a constant."""

    prior: Callable[[], Any]
    t: Callable[[Any], Any] = first
    weight: Callable[[float], float] = flat


SPHERES = {
    "VonMisesFisher": Case(lambda: VonMisesFisher(AXIS, 1.5), weight=lambda t: np.exp(1.5 * t)),
    "Bingham": Case(lambda: Bingham(2.0 * UNIT), weight=lambda t: np.exp(2 * t * t)),
    "ProjectedNormal": Case(lambda: dist.ProjectedNormal(AXIS), weight=projected),
}
MATRICES = {
    "StiefelUniform": Case(lambda: StiefelUniform(3, 2), entry),
    "square": Case(lambda: StiefelUniform(3, 3), entry),
    "MatrixLangevin": Case(lambda: MatrixLangevin(1.5 * UNIT[:, :2]), entry, lambda t: np.exp(1.5 * t)),
    "MatrixAngularCentralGaussian": Case(
        lambda: MatrixAngularCentralGaussian(torch.eye(3).double() + UNIT, 1), entry, lambda t: (1 - t * t / 2) ** -1.5
    ),
    "SpecialOrthogonalUniform": Case(lambda: SpecialOrthogonalUniform(3), entry),
    "MatrixFisher": Case(lambda: MatrixFisher(1.5 * UNIT), entry, lambda t: np.exp(1.5 * t)),
}
# Without coordinates about modes, or without a normalised density.
OTHERS = {
    "GrassmannUniform": Case(lambda: GrassmannUniform(3, 1), entry),
    "GrassmannLangevin": Case(lambda: GrassmannLangevin(2.0 * UNIT, 1), entry, lambda t: np.exp(2 * t * t)),
    "MatrixBingham": Case(lambda: MatrixBingham(2.0 * UNIT, torch.eye(1).double()), entry, lambda t: np.exp(2 * t * t)),
}
CASES = SPHERES | MATRICES | OTHERS
UNNORMALISED = {name: CASES[name] for name in ("GrassmannLangevin", "MatrixBingham")}
SHORT = {"VonMisesFisher", "ProjectedNormal"}


def named(cases):
    return [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in cases]


WITH_COORDINATES = named(SPHERES | MATRICES)


def model_of(case):
    def model():
        x = pyro.sample("x", case.prior())
        pyro.factor("likelihood", LIKELIHOOD * case.t(x).square())

    return model


def evidence_of(case):
    total = quad(case.weight, -1, 1)[0]
    return math.log(quad(lambda t: case.weight(t) * np.exp(LIKELIHOOD * t * t), -1, 1)[0] / total)


def estimate(model, **options):
    """A run whose warnings are errors: those of lost mass were false."""
    smc = SMC(OHMC(model), num_particles=256, num_runs=8, disable_progbar=True, **options)
    smc.run()
    return smc


@pytest.mark.parametrize("name", named(CASES))
def test_from_the_prior(name):
    smc = estimate(model_of(CASES[name]))
    assert_evidence(smc, evidence_of(CASES[name]))
    if name in SPHERES | MATRICES:  # not above the truth, and not useless
        assert -1 < smc.result.bound.log_evidence - evidence_of(CASES[name]) < 0.3


@pytest.mark.parametrize("name", WITH_COORDINATES)
def test_from_the_modes(name):
    assert_evidence(estimate(model_of(CASES[name]), init="modes", num_starts=16), evidence_of(CASES[name]))


@pytest.mark.parametrize("name", named(each for each in CASES if each not in UNNORMALISED))
def test_from_a_guide_over_unconstrained_space(name):
    model = model_of(CASES[name])
    guide = AutoNormal(model, init_scale=1.0)
    guide()
    assert_evidence(estimate(model, init=guide), evidence_of(CASES[name]))


@pytest.mark.parametrize("name", UNNORMALISED)
def test_the_evidence_from_a_guide_lacks_the_constant_of_a_prior_and_this_is_reported(name):
    model = model_of(CASES[name])
    guide = AutoNormal(model, init_scale=1.0)
    guide()
    with pytest.warns(UserWarning, match=rf"SMC: the density of {name}, the prior of site 'x', is not normalised"):
        smc = estimate(model, init=guide)
    assert_evidence(smc, evidence_of(CASES[name]) + math.log(quad(CASES[name].weight, 0, 1)[0]))


OF_TWO_MEASURES = [("VonMisesFisher", "ProjectedNormal"), ("ProjectedNormal", "VonMisesFisher")]
OF_ONE = [("Bingham", "VonMisesFisher"), ("ProjectedNormal", "ProjectedNormal")]


@pytest.mark.parametrize(
    ("name", "other"), [*OF_TWO_MEASURES, *(pytest.param(*pair, marks=pytest.mark.long) for pair in OF_ONE)]
)
def test_from_a_guide_on_the_manifold_with_another_base_measure(name, other):
    def guide():
        pyro.sample("x", CASES[other].prior())

    assert_evidence(estimate(model_of(CASES[name]), init=guide), evidence_of(CASES[name]))


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_COORDINATES)
def test_by_replica_exchange(name):
    exchange = ReplicaExchange(levels=4)
    mcmc = MCMC(OHMC(model_of(CASES[name])), 100, 60, num_chains=8, tempering=exchange, disable_progbar=True)
    mcmc.run()
    found = mcmc.diagnostics()["replica_exchange"]
    assert abs(found["log_evidence"] - evidence_of(CASES[name])) < 4 * found["log_evidence_error"]
    assert -1 < mcmc._run_here.bound.log_evidence - evidence_of(CASES[name]) < 0.3


def test_several_vectors_in_a_plate_and_another_site_from_the_modes():
    """Ten unit vectors, of two base measures; their modes ±e₁ are 2¹⁰ but for a pull to one side."""

    def model():
        with pyro.plate("vectors", 5):
            u = pyro.sample("u", VonMisesFisher(AXIS, 0.0))
        v = pyro.sample("v", dist.ProjectedNormal(torch.zeros(5, 3)).to_event(1))
        s = pyro.sample("s", dist.HalfNormal(1.0))
        pyro.factor("likelihood", 5 * (u[..., 0].sum() + v[..., 0].sum()) - s)

    of_s = math.log(quad(lambda s: 2 * math.exp(-s - s * s / 2) / math.sqrt(2 * math.pi), 0, 20)[0])
    assert_evidence(estimate(model, init="modes", num_starts=16), 10 * math.log(math.sinh(5) / 5) + of_s)


UNIFORM = {
    "VonMisesFisher": lambda: VonMisesFisher(AXIS, 0.0),
    "vectors": lambda: VonMisesFisher(AXIS, torch.zeros(4)).to_event(1),
    "Bingham": lambda: Bingham(torch.zeros(3, 3)),
    "ProjectedNormal": lambda: dist.ProjectedNormal(torch.zeros(3)),
    "ProjectedNormals": lambda: dist.ProjectedNormal(torch.zeros(4, 2)).to_event(1),
    "StiefelUniform": lambda: StiefelUniform(4, 2),
    "GrassmannUniform": lambda: GrassmannUniform(4, 2),
    "SpecialOrthogonalUniform": lambda: SpecialOrthogonalUniform(3),
}


@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal])
@pytest.mark.parametrize("name", UNIFORM)
def test_the_elbo_of_a_guide_that_equals_the_prior_is_0(name, kind):
    """Standard normal coordinates are uniform points, so that each draw has the weight 1."""

    def model():
        pyro.sample("x", UNIFORM[name]())

    guide = kind(model, init_scale=1.0)
    guide()
    with torch.no_grad():
        for key, parameter in guide.named_parameters():
            if "loc" in key:
                parameter.zero_()
    assert abs(Trace_ELBO(num_particles=3).loss(model, guide)) < 1e-9
    assert guide_khat(model, guide, num_draws=100) == -math.inf


def test_each_unit_vector_has_the_measure_that_its_constraint_names():
    for n in (2, 3, 4):
        area = 2 * math.pi ** (n / 2) / math.gamma(n / 2)
        assert math.isclose(constraints.log_base_measure(constraints.sphere, torch.Size([5, n])), 5 * math.log(area))
        assert constraints.log_base_measure(constraints.uniform_sphere, torch.Size([5, n])) == 0
