"""Low-rank guides: known Gaussians, their distribution, and Pyro's own ways with guides."""

import math
import pickle

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal, init_to_value
from pyro.infer.reparam import NeuTraReparam

from problems.monte_carlo import STANDARD_ERRORS, assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC
from pyro_manifold.infer.autoguide import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.manifolds import Euclidean, Grassmann, Stiefel
from pyro_manifold.optim import RiemannianAdam, TorchRiemannianAdam, parameter_groups

GUIDES = [
    AutoStiefelLowRankMultivariateNormal,
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
]
ORTHONORMAL = GUIDES[1:]  # those in which B itself is the parameter
over_guides = pytest.mark.parametrize("guide_type", GUIDES)
LATENT = 12


def target(factor_scale):
    """A Gaussian with known covariance, seen through two sites of different shape."""
    generator = torch.Generator().manual_seed(1)
    factor = Stiefel().random_point(LATENT, 2, dtype=torch.float64, generator=generator)
    scale = 0.3 + 0.5 * torch.rand(LATENT, dtype=torch.float64, generator=generator)
    loc = torch.randn(LATENT, dtype=torch.float64, generator=generator)
    return dist.LowRankMultivariateNormal(loc, factor * torch.as_tensor(factor_scale), scale.square()), factor, scale


def model(distribution):
    """Sites without a density of their own, and the density of both together."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2).mask(False))
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([6]).to_event(1).mask(False))
    pyro.factor("distribution", distribution.log_prob(torch.cat([a.flatten(-2), b], -1)))


def fit(guide, distribution, steps=2500, lr=0.05):
    args = {"optimizer": TorchRiemannianAdam, "optim_args": {"lr": lr}, "gamma": 0.01 ** (1 / steps)}
    schedule = pyro.optim.ExponentialLR(args)
    loss = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(guide.model, guide, schedule, loss)
    for _ in range(steps):
        svi.step(distribution)
        schedule.step()
    return guide


def start_anywhere(guide_type, **options):
    start = init_to_value(values={"a": torch.randn(2, 3), "b": torch.randn(6)})
    return guide_type(model, init_loc_fn=start, **options)


def small(guide_type=AutoStiefelLowRankMultivariateNormal, **options):
    distribution, _, _ = target([2.0, 1.0])
    guide = start_anywhere(guide_type, **{"rank": 2, "init_scale": 0.5, **options})
    guide(distribution)
    return guide, distribution


@pytest.mark.long
def test_stiefel_guide_recovers_a_gaussian_and_its_factor_from_any_start():
    distribution, factor, scale = target([3.0, 1.5])
    fits = []
    for _ in range(2):
        pyro.clear_param_store()
        guide = fit(start_anywhere(AutoStiefelLowRankMultivariateNormal, rank=2), distribution)
        fits.append(guide.identified_covariance())
        assert ((guide.loc.detach() - distribution.loc).abs() < 0.25 * distribution.stddev).all()
        assert torch.distributions.kl_divergence(guide.get_posterior(), distribution) < 0.1
    for found in fits:
        cosines = (found.factor * factor).sum(0).abs()  # column by column: no rotation, no exchange
        assert cosines.min() > 0.99
        torch.testing.assert_close(found.factor_scale, torch.tensor([3.0, 1.5]), rtol=0.1, atol=0)
        torch.testing.assert_close(found.scale, scale, rtol=0.15, atol=0)
        explained = torch.tensor([9.0, 2.25]) / distribution.variance.sum()
        torch.testing.assert_close(found.explained, explained, rtol=0.2, atol=0)
        assert found.directions["a"].shape == (2, 2, 3)
        torch.testing.assert_close(found.directions["b"], found.factor[6:].mT)
    assert (fits[0].factor - fits[1].factor).abs().max() < 0.1


@pytest.mark.long
def test_unconstrained_factors_depend_on_the_start():
    """The contrast that the orthonormal factor is for: the covariance agrees, the factor does not."""
    distribution, _, _ = target([3.0, 1.5])
    factors, covariances = [], []
    for _ in range(2):
        pyro.clear_param_store()
        guide = fit(start_anywhere(AutoLowRankMultivariateNormal, rank=2), distribution)
        covariances.append(guide.get_posterior().covariance_matrix.detach())
        factors.append((guide.cov_factor * guide.scale.unsqueeze(-1)).detach())
    assert (covariances[0] - covariances[1]).norm() < 0.15 * covariances[0].norm()
    columns = [factor / factor.norm(dim=0) for factor in factors]
    assert (columns[0].mT @ columns[1]).abs().amax(0).min() < 0.98


@pytest.mark.long
def test_grassmann_guide_recovers_its_subspace():
    distribution, factor, scale = target([2.0, 2.0])
    found = fit(start_anywhere(AutoGrassmannLowRankMultivariateNormal, rank=2), distribution).identified_covariance()
    assert torch.linalg.svdvals(found.factor.mT @ factor).min() > 0.99
    torch.testing.assert_close(found.factor_scale, torch.tensor([2.0, 2.0]), rtol=0.1, atol=0)
    torch.testing.assert_close(found.scale, scale, rtol=0.15, atol=0)


def test_a_fixed_factor_scale_stays():
    distribution, _, _ = target([2.0, 2.0])
    guide = fit(start_anywhere(AutoGrassmannLowRankMultivariateNormal, rank=2, factor_scale=1.0), distribution, steps=5)
    assert float(guide.factor_scale) == 1.0
    assert "factor_scale" not in dict(guide.named_parameters())
    assert guide.identified_covariance().factor_scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("guide_type", ORTHONORMAL)
def test_subspace_guides_do_not_depend_on_the_basis(guide_type):
    """Turning the basis leaves the Grassmann posterior alone and changes that with scales for its columns."""
    guide, _ = small(guide_type)
    guide.scale = 0.5 + torch.rand(LATENT)
    if guide_type is AutoProductStiefelLowRankMultivariateNormal:
        guide.factor_scale = torch.tensor([2.0, 0.5])
    before, identified = guide.get_posterior().covariance_matrix, guide.identified_covariance()
    guide.cov_factor = guide.cov_factor.detach() @ Stiefel().random_point(2, 2)
    after = guide.get_posterior().covariance_matrix
    same = torch.allclose(before, after)
    assert same == (guide_type is AutoGrassmannLowRankMultivariateNormal)
    if same:
        torch.testing.assert_close(guide.identified_covariance().factor, identified.factor)


def test_a_turned_factor_is_the_same_guide():
    """W and WR are one covariance, and B and c are read from it."""
    guide, _ = small(rank=3)
    guide.scale = 0.5 + torch.rand(LATENT)
    guide.relative_factor.data = torch.randn(LATENT, 3)
    before = guide.get_posterior().covariance_matrix, guide.cov_factor, guide.factor_scale
    torch.testing.assert_close(before[1].mT @ before[1], torch.eye(3))
    assert (before[2].diff() < 0).all()
    torch.testing.assert_close((before[1] * before[2].square()) @ before[1].mT + guide.scale.square().diag(), before[0])
    guide.relative_factor.data = guide.relative_factor.data @ Stiefel().random_point(3, 3)
    torch.testing.assert_close(guide.get_posterior().covariance_matrix, before[0])
    torch.testing.assert_close((guide.cov_factor.mT @ before[1]).abs(), torch.eye(3), rtol=0, atol=1e-8)
    torch.testing.assert_close(guide.factor_scale, before[2])


@over_guides
def test_what_is_identified_is_the_covariance_in_a_fixed_form(guide_type):
    guide, _ = small(guide_type, rank=3)
    guide.scale = 0.5 + torch.rand(LATENT)
    if guide_type is AutoProductStiefelLowRankMultivariateNormal:
        guide.factor_scale = torch.tensor([0.5, 2.0, 1.0])
    covariance, found = guide.get_posterior().covariance_matrix, guide.identified_covariance()
    scaled = found.factor * found.factor_scale
    torch.testing.assert_close(scaled @ scaled.mT + found.scale.square().diag(), covariance.detach())
    torch.testing.assert_close(found.factor.mT @ found.factor, torch.eye(3))
    torch.testing.assert_close(found.explained * covariance.trace(), found.factor_scale.square())
    assert (found.factor.gather(0, found.factor.abs().argmax(0, keepdim=True)) > 0).all()
    # Columns fall in scale, or where they share one, in what they say in units of what is left.
    weighted = found.factor / found.scale.unsqueeze(-1)
    products = weighted.mT @ weighted
    share_one = guide_type is AutoGrassmannLowRankMultivariateNormal
    assert ((products.diagonal() if share_one else found.factor_scale).diff() < 0).all()
    if share_one:
        torch.testing.assert_close(products, products.diagonal().diag())
    flat = torch.cat([found.directions["a"].flatten(1), found.directions["b"]], -1)
    torch.testing.assert_close(flat, found.factor.mT)


@over_guides
@pytest.mark.parametrize("rank", [0, 1, 3, LATENT])
def test_draws_are_from_the_posterior(guide_type, rank):
    """Draws come through another root of the covariance than `get_posterior`: the distributions must be one."""
    guide, _ = small(guide_type, rank=rank)
    guide.scale = 0.5 + torch.rand(LATENT)  # with equal ones the columns are orthogonal in the metric of the rest too
    posterior, transform = guide.get_posterior(), guide.get_transform()
    noise = guide.get_base_dist().sample((5,))
    latent = transform(noise)
    log_prob = guide.get_base_dist().log_prob(noise) - transform.log_abs_det_jacobian(noise, latent)
    torch.testing.assert_close(log_prob, posterior.log_prob(latent))
    torch.testing.assert_close(transform._inverse(latent), noise)
    torch.testing.assert_close(guide._loc_scale()[1], posterior.variance.sqrt())


@pytest.mark.parametrize(
    ("guide_type", "path_derivative"),
    [
        *((guide_type, True) for guide_type in GUIDES),
        (GUIDES[0], False),
        *(pytest.param(guide_type, False, marks=pytest.mark.long) for guide_type in ORTHONORMAL),
    ],
)
def test_gradient_of_the_elbo_is_unbiased(guide_type, path_derivative):
    """Against the closed form of the divergence between two Gaussians."""
    guide, distribution = small(guide_type, path_derivative=path_derivative)
    guide.scale = 0.5 + torch.rand(LATENT)
    parameters = dict(guide.named_parameters())
    exact = torch.autograd.grad(
        torch.distributions.kl_divergence(guide.get_posterior(), distribution), list(parameters.values())
    )
    estimates, elbo = [], Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=0)
    for _ in range(100):
        loss = elbo.differentiable_loss(model, guide, distribution)
        estimates.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()))]))
    estimates, exact = torch.stack(estimates), torch.cat([g.flatten() for g in exact])
    direction = torch.randn(len(exact))
    assert_mean(estimates @ direction, float(exact @ direction))
    assert_mean(estimates @ exact, float(exact @ exact))


def test_rank_zero_is_the_mean_field():
    guide, distribution = small(rank=0)
    mean_field = AutoNormal(model, init_loc_fn=init_to_value(values=guide.median()), init_scale=0.5 * 0.5**0.5)
    elbo = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=0)
    losses = [torch.tensor([elbo.loss(model, each, distribution) for _ in range(100)]) for each in (guide, mean_field)]
    assert_mean(losses[0] - losses[1], 0.0)
    found = guide.identified_covariance()
    assert found.factor.shape == (LATENT, 0)
    assert found.explained.shape == (0,)


def hierarchical(y):
    """Constrained sites, a plate with latents, and a orthonormal matrix through its transform."""
    loadings = pyro.sample("loadings", StiefelUniform(4, 2))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    with pyro.plate("groups", 3):
        mean = pyro.sample("mean", dist.Normal(0.0, spread))
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Normal(mean + loadings.prod(-1).sum(-1), 1.0), obs=y)


@pytest.mark.parametrize(
    ("guide_type", "vectorised"),
    [*((each, True) for each in GUIDES), pytest.param(GUIDES[0], False, marks=pytest.mark.long)],
)
def test_any_pyro_model(guide_type, vectorised):
    y = torch.randn(4, 3)
    guide = guide_type(hierarchical, rank=2)
    loss = Trace_ELBO(num_particles=3, vectorize_particles=vectorised, max_plate_nesting=2)
    svi = SVI(hierarchical, guide, RiemannianAdam({"lr": 0.05}), loss)
    losses = [svi.step(y) for _ in range(60)]
    assert sum(losses[-20:]) < sum(losses[:20])
    draws = Predictive(hierarchical, guide=guide, num_samples=7)(y)
    assert draws["mean"].shape[0] == 7
    assert constraints.stiefel.check(draws["loadings"]).all()
    assert (draws["spread"] > 0).all()
    low, high = guide.quantiles([0.1, 0.9])["spread"]
    assert low < guide.median()["spread"] < high
    assert guide.identified_covariance().directions["loadings"].shape == (2, 4, 2)


@pytest.mark.long
@over_guides
def test_neutra(guide_type):
    """Pyro's NeuTra samples in the coordinates in which the guide, fitted or not, is standard."""
    guide, distribution = small(guide_type)
    neutra = NeuTraReparam(guide)
    mcmc = MCMC(HMC(neutra.reparam(model), step_size=0.5, num_steps=6), 400, 50, disable_progbar=True)
    mcmc.run(distribution)
    latent = next(iter(mcmc.get_samples(group_by_chain=True).values()))
    with torch.no_grad():
        sites = neutra.transform_sample(latent)
    assert_mean(sites["a"][..., 1, 2], float(distribution.loc[5]))
    assert_mean((sites["b"][..., 0] - distribution.loc[6]).square(), float(distribution.variance[6]))


@over_guides
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_of_the_model(guide_type, dtype):
    def flat():
        pyro.sample("x", dist.Normal(torch.zeros(6, dtype=dtype), torch.ones(6, dtype=dtype)).to_event(1))

    guide = guide_type(flat, rank=2)
    svi = SVI(flat, guide, RiemannianAdam({"lr": 0.05}), Trace_ELBO())
    for _ in range(3):
        svi.step()
    assert {parameter.dtype for parameter in guide.parameters()} == {dtype}
    assert guide()["x"].dtype == dtype
    assert guide.identified_covariance().factor.dtype == dtype


@over_guides
def test_no_matrix_with_a_side_for_each_pair_of_dimensions(guide_type):
    """M = 200,000: an m×m matrix would take 320 GB."""
    m, init_scale = 200_000, 0.1

    def flat():
        pyro.sample("x", dist.Normal(torch.zeros(m), 1.0).to_event(1))

    guide = guide_type(flat, rank=2, init_scale=init_scale)
    guide()
    # The start is N(μ, v(I + BBᵀ)) with 2v = init_scale²: its divergence from N(0, I), and the variance of one draw of
    # log q - log p, that of ½(|x|² - |u|²) for u standard normal, which is ½ tr (Σ - I)² + μᵀΣμ.
    v, square = init_scale**2 / 2, float(guide.loc.detach().square().sum())
    divergence = 0.5 * ((m + 2) * v + square - m - m * math.log(v) - 2 * math.log(2))
    variance = 0.5 * (m - 2) * (v - 1) ** 2 + (2 * v - 1) ** 2 + 2 * v * square
    svi = SVI(flat, guide, RiemannianAdam({"lr": 0.01}), Trace_ELBO())
    losses = [svi.step() for _ in range(6)]
    assert abs(losses[0] - divergence) < STANDARD_ERRORS * variance**0.5
    assert losses[0] - losses[-1] > STANDARD_ERRORS * (2 * variance) ** 0.5
    assert guide.quantiles([0.5])["x"][0].shape == (200_000,)
    guide.get_posterior().log_prob(guide.loc)


@over_guides
def test_saved_guides(guide_type, tmp_path):
    guide, distribution = small(guide_type)
    before = guide.get_posterior().covariance_matrix
    pyro.get_param_store().save(tmp_path / "params")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "params")
    restored = start_anywhere(guide_type, rank=2)
    restored(distribution)
    torch.testing.assert_close(restored.get_posterior().covariance_matrix, before)
    copied = pickle.loads(pickle.dumps(guide))
    torch.testing.assert_close(copied.get_posterior().covariance_matrix, before)


@over_guides
def test_loaded_parameters_of_another_rank(guide_type, tmp_path):
    _, distribution = small(guide_type)
    pyro.get_param_store().save(tmp_path / "params")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "params")
    with pytest.raises(ValueError, match=r"factor has shape \(12, 2\), expected \(12, 3\).*the same rank"):
        start_anywhere(guide_type, rank=3)(distribution)


def test_optimisers_find_the_manifold_of_each_factor():
    names = ("relative_factor", "cov_factor_unconstrained", "cov_factor_unconstrained")
    for guide_type, name, manifold in zip(GUIDES, names, (Euclidean(0), Grassmann(), Stiefel()), strict=True):
        pyro.clear_param_store()
        guide, _ = small(guide_type)
        points = {id(point): group["manifold"] for group in parameter_groups(guide) for point in group["params"]}
        assert points[id(getattr(guide, name))] == manifold


@over_guides
def test_default_rank(guide_type):
    guide, _ = small(guide_type, rank=None)
    assert guide.cov_factor.shape == (LATENT, 3)


@over_guides
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": -1}, "rank=-1"),
        ({"rank": 1.5}, "rank=1.5"),
        ({"rank": True}, "rank=True"),
        ({"path_derivative": 1}, "path_derivative=1"),
        ({"init_scale": 0.0}, "init_scale=0.0"),
        ({"init_scale": float("nan")}, "init_scale=nan"),
        ({"init_scale": float("inf")}, "init_scale=inf"),
    ],
)
def test_options_out_of_range(guide_type, options, words):
    with pytest.raises(ValueError, match=rf"^{guide_type.__name__}: {words}, expected .*\.$"):
        guide_type(model, **options)


def test_factor_scale_out_of_range():
    with pytest.raises(ValueError, match="factor_scale=0"):
        AutoGrassmannLowRankMultivariateNormal(model, 2, 0)


@over_guides
def test_numbers_of_numpy_and_sites_without_elements(guide_type):
    def with_empty_site():
        pyro.sample("nothing", dist.Normal(torch.zeros(0), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).to_event(1))

    guide = guide_type(with_empty_site, rank=np.int64(1), init_scale=np.float32(0.1))
    guide()
    assert guide.identified_covariance().directions["nothing"].shape == (1, 0)


def test_a_covariance_that_does_not_determine_its_split():
    """[[2, 1], [1, 3]] is c²bbᵀ + D for many b."""
    guide, _ = small(rank=6)
    with pytest.warns(UserWarning, match="12 latent dimensions and rank 6 the split.*at least 13 dimensions"):
        guide.identified_covariance()


@over_guides
def test_more_columns_than_latent_dimensions(guide_type):
    with pytest.raises(ValueError, match=r"rank=13, but the model has 12 latent dimensions.*smaller rank\."):
        small(guide_type, rank=13)


def test_a_report_before_the_guide_has_run():
    with pytest.raises(RuntimeError, match=r"call it, or SVI\.step"):
        AutoStiefelLowRankMultivariateNormal(model).identified_covariance()
