"""Predictive in parallel draws from what Predictive draws from one draw after the other."""

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch
from pyro import poutine
from pyro.ops.indexing import Vindex

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import Predictive
from tests.infer.models import linear


def components(y):
    """Principal components with the dimensions of a batch on the left, as `parallel=True` requires."""
    U = pyro.sample("U", StiefelUniform(6, 2))
    scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        factor, diagonal = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(6)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(6), factor, diagonal), obs=y)


def posterior(draws):
    scales = torch.tensor([3.0, 1.5]) * (0.5 + torch.rand(draws, 1))
    return {"U": StiefelUniform(6, 2).sample((draws,)), "scales": scales, "noise": 0.2 + torch.rand(draws)}


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("rows", [80, 50])
def test_principal_components(parallel, rows):
    """Each row of each draw has the covariance of its own draw, also where there are as many rows as draws."""
    samples = posterior(80)
    predicted = Predictive(poutine.uncondition(components), samples, parallel=parallel)(torch.zeros(rows, 6))
    assert set(predicted) == {"y"}
    y = predicted["y"]
    assert y.shape == (80, rows, 6)
    factor = samples["U"] * samples["scales"][:, None]
    covariance = factor @ factor.mT + samples["noise"][:, None, None] ** 2 * torch.eye(6)
    distances = (y * torch.linalg.solve(covariance, y.mT).mT).sum(-1)
    assert_mean(distances, 6.0)


def test_sites_in_plates_are_where_they_were():
    """A site in the outer plate only, one in the inner one only, one in both, one in neither."""

    def model():
        rows, columns = pyro.plate("rows", 4, dim=-2), pyro.plate("columns", 3, dim=-1)
        with rows:
            a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with columns:
            b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        c = pyro.sample("c", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        with rows, columns:
            d = pyro.sample("d", dist.Normal(0.0, 1.0))
            mean = pyro.deterministic("mean", ((a + b)[..., None] * c).sum((-1, -2)) + d, event_dim=0)
            pyro.sample("y", dist.Normal(mean, 1.0))

    a, b, c, d = torch.randn(7, 4, 1, 2), torch.randn(7, 3, 2), torch.randn(7, 2, 2), torch.randn(7, 4, 3)
    samples = {"a": a, "b": b, "c": c, "d": d}
    expected = ((a + b[:, None])[..., None] * c[:, None, None]).sum((-1, -2)) + d
    for parallel in (True, False):
        predicted = Predictive(model, samples, return_sites=["mean", "y"], parallel=parallel)()
        torch.testing.assert_close(predicted["mean"], expected)
        assert predicted["y"].shape == (7, 4, 3)
    trace = Predictive(model, samples).get_vectorized_trace()
    torch.testing.assert_close(trace.nodes["mean"]["value"], expected)


def test_without_draws_and_with_a_guide_it_is_pyros():
    model = poutine.uncondition(components)
    data = torch.zeros(5, 6)
    assert Predictive(model, num_samples=7, parallel=True)(data)["y"].shape == (7, 5, 6)
    guide = pyro.infer.autoguide.AutoNormal(components)
    guide(data)
    assert Predictive(model, guide=guide, num_samples=7, parallel=True)(data)["y"].shape == (7, 5, 6)


INDICES = {"plain": lambda F, group: F[..., group, :, :], "Vindex": lambda F, group: Vindex(F)[..., group, :, :]}


@pytest.mark.parametrize(("index", "plate", "right"), [
    ("plain", True, True), ("Vindex", True, False), ("plain", False, False), ("Vindex", False, True),
])  # fmt: skip
def test_draws_that_would_meet_the_elements_of_a_plate_are_refused(index, plate, right):
    """As many draws as rows, and groups in a plate or in the event: no error would tell the wrong pairs."""

    def model(group):
        normal = dist.Normal(0.0, 8.0)
        if plate:
            with pyro.plate("groups", 3):
                F = pyro.sample("F", normal.expand([3, 2]).to_event(2))
        else:
            F = pyro.sample("F", normal.expand([3, 3, 2]).to_event(3))
        pyro.deterministic("first", F[..., 0, 0, 0])
        with pyro.plate("rows", len(group)):
            pyro.sample("X", MatrixLangevin(INDICES[index](F, group)))

    group = torch.arange(20) % 3
    modes = StiefelUniform(3, 2).sample((20, 3))
    predictive = Predictive(model, {"F": 400 * modes}, parallel=True)
    if right:
        assert (predictive(group)["X"] - modes[:, group]).norm(dim=(-2, -1)).max() < 0.5
    else:
        with pytest.raises(ValueError, match=r"Predictive\(parallel=True\): .* or pass parallel=False"):
            predictive(group)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("expected", "draws"),
    [
        ("posterior_samples=[1, 2], expected a dictionary of draws by site", [1, 2]),
        (
            "posterior_samples['w'] is of shape (), expected a tensor (draws, ...)",
            {"w": torch.tensor(1.0)},
        ),
        (
            "posterior_samples['w'] is of shape (0, 2), expected a tensor (draws, ...)",
            {"w": torch.ones(0, 2)},
        ),
        ("posterior_samples['w'] is of type list, expected", {"w": [1.0, 2.0]}),
        ("posterior_samples['w'] has shape (4, 3), expected (draws, *(2,))", {"w": torch.ones(4, 3)}),
        ("posterior_samples['w'] has shape (2, 5, 2), expected (draws, *(2,))", {"w": torch.ones(2, 5, 2)}),
    ],
)
def test_draws_that_do_not_fit(expected, draws, parallel):
    with pytest.raises(ValueError, match=r"\.$") as error:
        Predictive(linear, draws, parallel=parallel)(torch.ones(5, 2), torch.ones(5))
    assert expected in str(error.value)


def test_sites_to_return_are_a_list():
    with pytest.raises(ValueError, match=r"return_sites='y', expected a list like \['y'\]"):
        Predictive(linear, {"w": torch.ones(4, 2)}, return_sites="y")


def test_arrays_of_draws():
    draws = np.ones((4, 2))
    predicted = Predictive(linear, {"w": draws}, return_sites=["w"])(torch.ones(5, 2), torch.ones(5))
    assert torch.is_tensor(predicted["w"])
    assert (predicted["w"] == 1).all()


def test_what_a_mask_leaves_out_is_not_computed():
    """As by Pyro's Predictive: predictions need no factor."""
    computed = []

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if pyro.poutine.get_mask() is not False:
            computed.append(x)
            pyro.factor("costly", x)

    Predictive(model, {"x": torch.ones(3)}, parallel=True)()
    assert not computed


def test_a_prior_that_needs_single_draws_is_refused():
    """Without posterior draws Pyro's sums over all draws, in silence."""

    def total(x):
        s = pyro.sample("s", dist.HalfNormal(1.0).expand([3]).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(s.sum() * x.abs().mean() * torch.ones(len(x)), 1e-3))

    with pytest.raises(ValueError, match=r"Predictive\(parallel=True\)"):
        Predictive(total, num_samples=50, parallel=True)(torch.randn(9))
    assert Predictive(total, num_samples=3)(torch.randn(9))["y"].shape == (3, 9)


def test_prior_predictions_at_once_have_the_moments_of_the_prior():
    predicted = Predictive(poutine.uncondition(components), num_samples=2000, parallel=True)(torch.zeros(5, 6))["y"]
    assert predicted.shape == (2000, 5, 6)
    assert_mean(predicted.square().sum(-1).mean(-1)[None], 2 * 25.0 + 6.0)


@pytest.mark.parametrize("given", [True, False])
def test_an_error_between_sites_names_the_site_before_it(given):
    """Also for draws from the prior."""

    def product(count):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", count):
            z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
            pyro.sample("y", dist.Normal(z @ w, 1.0))

    expected = r"last site before the error is 'z', and shapes are \{'w': \(2, 1, 3\), 'z': \(2, 10, 3\)\}\): index"
    with pytest.raises(ValueError, match=expected):
        Predictive(product, {"w": torch.ones(5, 3)} if given else None, num_samples=5, parallel=True)(10)


@pytest.mark.parametrize("parallel", [True, False])
def test_deterministic_sites_are_those_of_the_present_arguments(parallel):
    """Stored values of them belong to the arguments of the run: predictions would be those of the old rows."""

    def model(x):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        mean = pyro.deterministic("mean", slope * x)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, 1e-3))

    old, new, slopes = torch.arange(4.0), 10 + torch.arange(3.0), torch.tensor([1.0, 2.0, -1.0])
    stored = {"slope": slopes, "mean": slopes[:, None] * old}
    predicted = Predictive(model, stored, parallel=parallel)(new)
    assert set(predicted) == {"mean", "y"}
    torch.testing.assert_close(predicted["y"], slopes[:, None] * new, atol=0.01, rtol=0)
    alone = Predictive(model, {"mean": stored["mean"]}, parallel=parallel)(new)
    assert alone["y"].shape == (3, 3)
    assert set(alone) == {"slope", "mean", "y"}
