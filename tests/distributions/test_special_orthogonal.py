"""Rotations: the uniform distribution on SO(n), its charts, and inference that never leaves it."""

import pyro
import pytest
import torch
from pyro.infer import NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch.distributions import biject_to, transform_to

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import SpecialOrthogonalUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC, SMC
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel
from pyro_manifold.optim import RiemannianAdam
from tests.parameters import long_except

CHARTS = {"directions": biject_to, "polar": transform_to}
over_charts = pytest.mark.parametrize("chart", CHARTS)
over_sizes = pytest.mark.parametrize("n", [2, 3, 5])

# Of the density exp(κ tr X) on SO(3) the angle θ has the density (1 - cos θ) exp(κ (1 + 2 cos θ)) / π.
CONCENTRATION = 1.5
ANGLES = torch.linspace(0, torch.pi, 20_001, dtype=torch.float64)
WEIGHTS = (1 - ANGLES.cos()) * (CONCENTRATION * (1 + 2 * ANGLES.cos())).exp()
MEAN_TRACE = float(torch.trapezoid(WEIGHTS * (1 + 2 * ANGLES.cos()), ANGLES) / torch.trapezoid(WEIGHTS, ANGLES))
LOG_EVIDENCE = float((torch.trapezoid(WEIGHTS, ANGLES) / torch.pi).log())


def about_the_identity():
    X = pyro.sample("X", SpecialOrthogonalUniform(3))
    pyro.factor("likelihood", CONCENTRATION * X.diagonal(dim1=-2, dim2=-1).sum(-1))


def trace(X):
    return X.diagonal(dim1=-2, dim2=-1).sum(-1)


def are_rotations(X):
    return bool(constraints.special_orthogonal.check(X).all()) and bool((torch.linalg.det(X) > 0).all())


def assert_uniform(X):
    """Moments of Haar measure; E (tr X)² = 1 for n ≥ 3 and 2 for n = 2, where the trace is 2 cos θ."""
    n = X.shape[-1]
    assert are_rotations(X)
    for Y in (X, SpecialOrthogonal().random_point(n, n) @ X, X @ SpecialOrthogonal().random_point(n, n)):
        assert_mean(Y[:, 0, 0], 0.0)
        assert_mean(Y[:, -1, 0].square(), 1 / n)
        assert_mean(Y[:, -1, -1] ** 4, 3 / (n * (n + 2)))
        assert_mean(trace(Y).square(), 2.0 if n == 2 else 1.0)
    if n == 3:  # what tells SO(3) from O(3): each column is the cross product of the others
        assert_mean(X[:, 0, 0] * X[:, 1, 1] * X[:, 2, 2], 1 / 6)


@over_sizes
def test_draws_are_uniform(n):
    assert_uniform(SpecialOrthogonalUniform(n).sample((40_000,)))


@over_charts
@over_sizes
def test_gaussian_coordinates_give_uniform_rotations(chart, n):
    transform = CHARTS[chart](constraints.special_orthogonal)
    z = torch.randn(40_000, *transform.inverse_shape(torch.Size([n, n])))
    assert_uniform(transform(z))
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z[:3]).flatten(1).sum(1)
    torch.testing.assert_close(transform.log_abs_det_jacobian(z[:3], None), expected)


@over_charts
@over_sizes
def test_the_pseudo_inverse_leads_back(chart, n):
    transform = CHARTS[chart](constraints.special_orthogonal)
    X = SpecialOrthogonalUniform(n, (6, 2)).sample()
    coordinates = transform.inv(X)
    assert transform.forward_shape(coordinates.shape) == X.shape
    assert transform.inverse_shape(X.shape) == coordinates.shape
    torch.testing.assert_close(transform(coordinates), X)


@over_charts
def test_half_turns_about_axes_come_back(chart):
    """Their columns lie exactly against those of the identity, where the smallest rotation is not unique."""
    transform = CHARTS[chart](constraints.special_orthogonal)
    for diagonal in ([1, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, 1]):
        X = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        torch.testing.assert_close(transform(transform.inv(X)), X, atol=1e-9, rtol=0)


@over_charts
def test_derivatives(chart):
    transform = CHARTS[chart](constraints.special_orthogonal)
    z = torch.randn(4, *transform.inverse_shape(torch.Size([3, 3]))).requires_grad_()
    assert torch.autograd.gradcheck(transform, (z,), check_forward_ad=True)


def test_members():
    X = Stiefel().random_point(50, 3, 3)
    assert torch.equal(constraints.special_orthogonal.check(X), torch.linalg.det(X) > 0)
    nearest = SpecialOrthogonal().projection(X)
    assert are_rotations(nearest)
    inside = torch.linalg.det(X) > 0
    torch.testing.assert_close(nearest[inside], X[inside])
    # From the other component the nearest rotation is 2 away, whichever direction is turned round.
    torch.testing.assert_close((nearest - X)[~inside].norm(dim=(-2, -1)), torch.full((int((~inside).sum()),), 2.0))


@pytest.mark.parametrize("way", long_except(["OHMC", "GHMC", "OHMC in a chart", "NUTS"], "OHMC"))
def test_samplers_draw_from_a_known_distribution(way):
    chart = {"X": biject_to(constraints.special_orthogonal).inv}
    kernels = {
        "OHMC": lambda: OHMC(about_the_identity),
        "GHMC": lambda: GHMC(about_the_identity),
        "OHMC in a chart": lambda: OHMC(about_the_identity, transforms=chart, trajectory_length=2.0),
        "NUTS": lambda: NUTS(about_the_identity),
    }
    chains, draws = (1, 150) if way == "NUTS" else (32, 150)
    mcmc = MCMC(kernels[way](), draws, 100 if way == "NUTS" else 150, num_chains=chains, disable_progbar=True)
    mcmc.run()
    X = mcmc.get_samples(group_by_chain=True)["X"]
    assert are_rotations(X)
    assert "reflected" not in mcmc.get_extra_fields()
    assert_mean(trace(X), MEAN_TRACE)


def test_evidence():
    smc = SMC(OHMC(about_the_identity), num_particles=256, num_runs=8, disable_progbar=True)
    smc.run()
    assert are_rotations(smc.get_samples()["X"])
    assert_mean((smc.log_evidences - LOG_EVIDENCE).exp(), 1.0)


@pytest.mark.long
def test_svi_with_a_guide_of_pyro():
    guide = AutoNormal(about_the_identity)
    svi = SVI(about_the_identity, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    losses = torch.tensor([svi.step() for _ in range(300)])
    assert are_rotations(torch.stack([guide()["X"] for _ in range(20)]).detach())
    assert float(-losses[-100:].mean()) < LOG_EVIDENCE  # a lower bound
    assert float(losses[-100:].mean()) < float(losses[:20].mean())


@pytest.mark.parametrize("optimiser", long_except(["Adam", "RiemannianAdam"], "RiemannianAdam"))
def test_a_parameter_goes_to_the_nearest_rotation(optimiser):
    goal = torch.tensor([[1.0, 0.2, 0.0], [0.1, -2.0, 0.3], [0.0, 0.5, 3.0]])  # its polar factor is a reflection
    optim = {"Adam": pyro.optim.Adam, "RiemannianAdam": RiemannianAdam}[optimiser]({"lr": 0.02})

    def loss():
        X = pyro.param("X", torch.eye(3), constraint=constraints.special_orthogonal)
        assert are_rotations(X.detach())
        return -(goal * X).sum()

    for _ in range(400):
        with pyro.poutine.trace(param_only=True) as seen:
            value = loss()
        value.backward()
        parameters = {site["value"].unconstrained() for site in seen.trace.nodes.values() if site["type"] == "param"}
        optim(parameters)
        pyro.infer.util.zero_grads(parameters)
    torch.testing.assert_close(pyro.param("X").detach(), SpecialOrthogonal().projection(goal), atol=5e-3, rtol=0)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"^SpecialOrthogonalUniform: n=1, expected an integer of 2 or more"):
        SpecialOrthogonalUniform(1)
    with pytest.raises(ValueError, match=r"^RotationTransform: got a vector of length 3"):
        biject_to(constraints.special_orthogonal)(torch.zeros(3))
    with pytest.raises(ValueError, match="rotations are n×n"):
        SpecialOrthogonal().random_point(3, 2)
    assert not constraints.special_orthogonal.check(torch.eye(3, 2))
