"""Supports that depend on other sites, and supports that torch declares too wide."""

import warnings
from typing import ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import transforms
from pyro.infer import NUTS
from pyro.infer.autoguide import AutoNormal
from torch.distributions import biject_to, constraints

from problems.monte_carlo import assert_mean
from pyro_manifold.density import target_from_model, with_true_support
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, SVI
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal


def shifted():
    return dist.TransformedDistribution(dist.Exponential(2.0), [transforms.AffineTransform(-0.3, 1.0)])


def below(a):
    return dist.TransformedDistribution(dist.Exponential(1.0), [transforms.AffineTransform(a, -2.0)])


def outside_of_torch(a):
    return torch.as_tensor(a.detach().numpy().copy())


def column():
    U = pyro.sample("U", StiefelUniform(3, 1))
    return 1 + U[0, 0] ** 2


# The distribution of x given a, and a function of both whose distribution does not depend on a.
FORMS = {
    "interval": (lambda a: dist.Uniform(0.0, a), lambda x, a: x / a, dist.Uniform(0.0, 1.0)),
    "both bounds": (lambda a: dist.Uniform(-a, a), lambda x, a: x / a, dist.Uniform(-1.0, 1.0)),
    "detached": (lambda a: dist.Uniform(0.0, a.detach()), lambda x, a: x / a, dist.Uniform(0.0, 1.0)),
    "NumPy": (lambda a: dist.Uniform(0.0, outside_of_torch(a)), lambda x, a: x / a, dist.Uniform(0.0, 1.0)),
    "lower bound": (lambda a: dist.Pareto(a, 3.0), lambda x, a: (x / a).log(), dist.Exponential(3.0)),
    "upper bound": (below, lambda x, a: (a - x) / 2, dist.Exponential(1.0)),
    "masked": (lambda a: dist.Uniform(0.0, a).mask(torch.tensor(True)), lambda x, a: x / a, dist.Uniform(0.0, 1.0)),
    "events": (
        lambda a: dist.Uniform(0.0, a).expand([2]).to_event(1),
        lambda x, a: x / a,
        dist.Uniform(0.0, 1.0).expand([2]).to_event(1),
    ),
}


def model_of(form, first=lambda: pyro.sample("a", dist.Uniform(1.0, 2.0))):
    def model():
        pyro.sample("x", FORMS[form][0](first()))

    return model


@pytest.mark.parametrize("form", FORMS)
def test_the_transform_follows_the_support(form):
    """The density of the coordinate of x given a is that of a standard variable, by the change of variables."""
    _, standardised, standard = FORMS[form]
    target = target_from_model(model_of(form))
    assert target.dependent == {"x"}
    z = {name: torch.randn(5, *value.shape) for name, value in target.draw().items()}
    values = target.values(z)
    for k in range(5):
        one = {name: x[k] for name, x in z.items()}
        torch.testing.assert_close(target.values(one), {name: x[k] for name, x in values.items()})

        def standard_value(x, one=one, a=values["a"][k]):
            return standardised(target.values({**one, "x": x})["x"], a)

        slope = torch.autograd.functional.jacobian(standard_value, one["x"])
        log_slope = torch.linalg.slogdet(slope.reshape(one["x"].numel(), -1)).logabsdet
        prior = dist.Logistic(0.0, 1.0).log_prob(one["a"])
        expected = prior + standard.log_prob(standard_value(one["x"])) + log_slope
        torch.testing.assert_close(-target.potential_fn(one), expected)
    torch.testing.assert_close(target.positions(values), z)


def three():
    """Elements of plates, each with a support of its own, and a chain of sites."""
    with pyro.plate("rows", 3, dim=-1):
        a = pyro.sample("a", dist.Uniform(1.0, 2.0))
        with pyro.plate("columns", 2, dim=-2):
            pyro.sample("x", dist.Uniform(0.0, a))
    b = pyro.sample(
        "b", dist.TransformedDistribution(dist.Exponential(1.0), [transforms.AffineTransform(a.sum(), 1.0)])
    )
    pyro.sample("c", dist.Pareto(b, 4.0))


def assert_three(samples):
    a, b = samples["a"], samples["b"]
    assert_mean((samples["x"] / a.unsqueeze(-2)).mean((-1, -2)), 0.5)
    assert_mean(((samples["x"] / a.unsqueeze(-2)) ** 2).mean((-1, -2)), 1 / 3)
    assert_mean(a.mean(-1), 1.5)
    assert_mean(b - a.sum(-1), 1.0)
    assert_mean((samples["c"] / b).log(), 0.25)


def test_draws_have_the_known_distribution():
    mcmc = MCMC(OHMC(three), num_samples=100, warmup_steps=200, num_chains=32, disable_progbar=True)
    mcmc.run()
    assert_three(mcmc.get_samples(group_by_chain=True))


def test_one_chain_follows_what_is_computed_outside_of_torch():
    target = target_from_model(model_of("NumPy"))
    for a in (-3.0, 3.0):
        values = target.values({"a": torch.tensor([a]), "x": torch.zeros(1)})
        torch.testing.assert_close(values["x"], values["a"] / 2)


def test_supports_may_depend_on_manifold_sites():
    target = target_from_model(model_of("interval", column))
    assert target.dependent == {"x"}
    values = target.values({"U": StiefelUniform(3, 1).sample((4,)), "x": torch.zeros(4)})
    torch.testing.assert_close(values["x"], (1 + values["U"][:, 0, 0] ** 2) / 2)


def test_supports_on_the_sides_of_a_branch_are_seen():
    def model():
        a = pyro.sample("a", dist.Uniform(1.0, 2.0))
        pyro.sample("x", dist.Uniform(0.0, 1.0) if a > 1.5 else dist.Uniform(2.0, 3.0))

    target = target_from_model(model)
    assert target.dependent == {"x"}
    values = target.values({"a": torch.tensor([-3.0, 3.0]), "x": torch.zeros(2)})
    torch.testing.assert_close(values["x"], torch.tensor([2.5, 0.5]))


def test_bounds_that_move_only_far_away_are_seen():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Uniform(0.0, a.clamp(min=30.0)))

    assert target_from_model(model).dependent == {"x"}


def test_what_is_fixed_is_not_taken_for_dependent():
    scale = pyro.param("scale", torch.tensor(2.0))

    def model(bound):
        a = pyro.sample("a", dist.Uniform(1.0, bound))
        pyro.sample("b", dist.Uniform(0.0, scale))
        pyro.sample("c", dist.Normal(0.0, a))

    assert target_from_model(model, (torch.tensor([2.0, 3.0]).max(),)).dependent == set()


Y = torch.tensor([0.3, 0.5, 0.7])


def bounded():
    a = pyro.sample("a", dist.Uniform(1.0, 2.0))
    x = pyro.sample("x", dist.Uniform(0.0, a))
    with pyro.plate("rows", 3):
        pyro.sample("y", dist.Normal(x, 0.5), obs=Y)


def by_quadrature():
    """Evidence, and posterior mean of x, on a grid."""
    x, a = torch.linspace(0.0, 2.0, 4001), torch.linspace(1.0, 2.0, 1001)[:, None]
    density = torch.where(x <= a, dist.Normal(x[:, None], 0.5).log_prob(Y).sum(-1).exp() / a, 0.0)
    evidence = torch.trapezoid(torch.trapezoid(density, x), a[:, 0])
    return float(evidence.log()), float(torch.trapezoid(torch.trapezoid(density * x, x), a[:, 0]) / evidence)


def test_smc_follows_supports():
    smc = SMC(OHMC(bounded), 1024, disable_progbar=True)
    smc.run()
    log_evidence, mean = by_quadrature()
    assert abs(smc.log_evidence - log_evidence) < 4 * smc.log_evidence_error
    assert_mean(smc.get_samples()["x"], mean)


def test_runs_store_and_start_within_supports(tmp_path):
    start = {"a": torch.zeros(16), "x": torch.zeros(16)}  # in unconstrained space: a = 1.5, x = a / 2
    options = {"num_chains": 16, "initial_params": start, "disable_progbar": True}
    first, second = (MCMC(OHMC(bounded), 40, 60, store=store, **options) for store in (None, tmp_path / "run"))
    for mcmc in (first, second):
        pyro.set_rng_seed(0)
        mcmc.run()
    torch.testing.assert_close(first.get_samples()["x"], second.get_samples()["x"], rtol=0, atol=0)
    assert_mean(first.get_samples(group_by_chain=True)["x"], by_quadrature()[1])


@pytest.mark.long
def test_replica_exchange_follows_supports():
    mcmc = MCMC(OHMC(bounded), 100, 80, num_chains=8, tempering=True, disable_progbar=True)
    mcmc.run()
    assert_mean(mcmc.get_samples(group_by_chain=True)["x"], by_quadrature()[1])


def summed_out():
    z = pyro.sample("z", dist.Bernoulli(0.5))
    pyro.sample("x", dist.Uniform(0.0, 1 + z))


def sequentially(model):
    MCMC(OHMC(model), 2, 2, num_chains=1, chain_method="sequential", disable_progbar=True).run()


def by_a_kernel_of_pyro(model):
    MCMC(NUTS(model), 2, 2, disable_progbar=True).run()


def by_svi(guide):
    def fit(model):
        SVI(model, guide(model), pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO()).step()

    return fit


def from_a_guide(model):
    SMC(OHMC(model), 64, init=lambda: three(), disable_progbar=True).run()


def with_a_transform(model):
    target_from_model(model, transforms={"x": transforms.SigmoidTransform().inv})


REFUSED = [
    (sequentially, bounded, "sequential"),
    (by_a_kernel_of_pyro, bounded, "Pyro's kernels"),
    (by_svi(AutoNormal), bounded, "automatic guides"),
    (by_svi(AutoStiefelLowRankMultivariateNormal), bounded, "automatic guides"),
    (by_svi(AutoNormal), lambda: pyro.sample("x", shifted()), "automatic guides"),
    (from_a_guide, bounded, "a guide as the initial distribution"),
    (with_a_transform, bounded, "a given transform"),
    (lambda model: target_from_model(model).potential_fn({"x": torch.tensor(0.0)}), summed_out, "summed out"),
]


@pytest.mark.parametrize(("way", "model", "words"), REFUSED)
def test_what_does_not_follow_is_refused(way, model, words):
    with pytest.raises(ValueError, match=f"Site 'x'.*{words}"):
        way(model)


# ---- declared too wide -------------------------------------------------------------------------------------------

AFFINE = [
    (lambda: dist.Exponential(2.0), [transforms.AffineTransform(-0.3, 1.0)], -0.3, torch.inf),
    (lambda: dist.Exponential(2.0), [transforms.AffineTransform(-0.3, -1.0)], -torch.inf, -0.3),
    (lambda: dist.Beta(2.0, 3.0), [transforms.AffineTransform(-1.0, 2.0)], -1.0, 1.0),
    (lambda: dist.Normal(0.0, 1.0), [transforms.ExpTransform(), transforms.AffineTransform(1.0, 2.0)], 1.0, torch.inf),
    (lambda: dist.Exponential(2.0), [transforms.ExpTransform()], 1.0, torch.inf),
    (lambda: dist.LogNormal(0.0, 1.0).expand([3]).to_event(1), [transforms.AffineTransform(1.0, 2.0)], 1.0, torch.inf),
    (lambda: dist.Uniform(0.0, 1.0), [transforms.SigmoidTransform().inv], None, None),
    (lambda: dist.Normal(0.0, 1.0), [transforms.AffineTransform(1.0, 2.0)], None, None),
]
WRAPPERS = [
    lambda fn: fn,
    lambda fn: fn.mask(torch.tensor(True)),
    lambda fn: fn.expand([2, *fn.batch_shape]).to_event(1),
]


@pytest.mark.parametrize(("base", "parts", "lower", "upper"), AFFINE)
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=["plain", "masked", "independent"])
def test_supports_follow_from_the_base(base, parts, lower, upper, wrapper):
    declared = wrapper(dist.TransformedDistribution(base(), parts))
    found = with_true_support(declared)
    if lower is None:  # the declared support is right
        assert found is declared
        return
    x = found.sample((20,))
    transform = biject_to(found.support)
    far = transform(3 * torch.randn_like(transform.inv(x)))
    for value in (x, far):
        assert found.support.check(value).all()
        assert ((value >= lower - 1e-6) & (value <= upper + 1e-6)).all()
    torch.testing.assert_close(transform(transform.inv(x)), x)
    torch.testing.assert_close(found.log_prob(x), declared.log_prob(x))
    outside = torch.full_like(x, lower - 1.0 if lower > -torch.inf else upper + 1.0)
    assert not found.support.check(outside).any()


def test_draws_of_a_shifted_exponential_stay_in_its_support():
    def model():
        x = pyro.sample("x", shifted())
        pyro.sample("mean", dist.Normal(x, 0.1), obs=torch.tensor(-0.15))

    mcmc = MCMC(OHMC(model), 100, 200, num_chains=32, disable_progbar=True)
    mcmc.run()
    x = mcmc.get_samples(group_by_chain=True)["x"]
    grid = torch.linspace(-0.3, 1.0, 100_001)
    density = (-2 * grid + dist.Normal(grid, 0.1).log_prob(torch.tensor(-0.15))).exp()
    assert x.min() >= -0.3
    assert_mean(x, float(torch.trapezoid(density * grid, grid) / torch.trapezoid(density, grid)))


class DeclaredTooWide(dist.TransformedDistribution):
    support = constraints.real

    def __init__(self, rate, location):
        super().__init__(dist.Exponential(rate), [transforms.AffineTransform(location, 1.0)])


class DeclaredRightly(DeclaredTooWide):
    support = constraints.greater_than(-0.3)


class ByAnother(dist.TorchDistribution):
    """A shifted exponential distribution that is not a transformed one."""

    support = constraints.real
    arg_constraints: ClassVar[dict] = {}

    def __init__(self, rate, location):
        self.base, self.location = dist.Exponential(rate), location
        super().__init__()

    def sample(self, sample_shape=()):
        return self.base.sample(sample_shape) + self.location

    def log_prob(self, value):
        return self.base.log_prob(value - self.location)


class TwoSided(ByAnother):
    def log_prob(self, value):
        return torch.where(value > 0, self.base.log_prob(value), self.base.log_prob(-value))


class FailsSomewhere(ByAnother):
    def log_prob(self, value):
        return -torch.linalg.cholesky(torch.eye(2) * (value + 1)).diagonal().log().sum() - value.square()


class ZeroOutside(ByAnother):
    def log_prob(self, value):
        return torch.where(value < self.location, -torch.inf, super().log_prob(value))


def test_a_class_that_declares_too_much_has_the_support_of_its_base():
    with pytest.warns(UserWarning, match=r"DeclaredTooWide has the support Real\(\), and its base and transforms give"):
        found = with_true_support(DeclaredTooWide(2.0, -0.3))
    assert found.support.check(torch.tensor([-0.4, -0.2])).tolist() == [False, True]
    assert with_true_support(found) is found
    right = DeclaredRightly(2.0, -0.3)
    assert with_true_support(right) is right


def test_each_instance_of_a_class_counts():
    """One may have the support that the class declares, and the next not."""

    class Positive(DeclaredTooWide):
        support = constraints.positive

    first = Positive(2.0, 0.0)
    assert with_true_support(first) is first
    with pytest.warns(UserWarning, match="Positive has the support"):
        second = with_true_support(Positive(2.0, 3.0))
    assert second.support.check(torch.tensor([2.0, 4.0])).tolist() == [False, True]


def test_supports_without_a_map_are_believed():
    class Counts(DeclaredTooWide):
        support = constraints.nonnegative_integer

    counts = Counts(2.0, 0.5)
    assert with_true_support(counts) is counts


@pytest.mark.parametrize(
    ("distribution", "words"),
    [(ByAnother, "declares the support Real"), (ZeroOutside, None), (TwoSided, None), (FailsSomewhere, None)],
)
def test_densities_by_another_distribution_outside_of_its_support_are_named(distribution, words):
    def model():
        x = pyro.sample("x", distribution(2.0, -0.3))
        pyro.sample("y", dist.Normal(x, 0.1), obs=torch.tensor(-0.15))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        target_from_model(model)
    found = [str(each.message) for each in caught if "support" in str(each.message)]
    assert len(found) == (words is not None)
    assert all(words in sentence and "Site 'x'" in sentence for sentence in found)


def test_data_outside_of_a_shifted_support_are_named():
    def model():
        pyro.sample("y", shifted(), obs=torch.tensor(-0.5))

    with pytest.warns(UserWarning, match="Site 'y': 1 of 1 observed values are outside"):
        target_from_model(model)


def test_components_of_mixtures_have_their_own_support():
    shift = transforms.AffineTransform(torch.tensor([-1.0, 2.0]), 1.0)
    components = dist.TransformedDistribution(dist.Exponential(torch.ones(2)), [shift])
    found = with_true_support(dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), components))
    assert found.component_distribution.support.check(torch.tensor([-0.5, 1.0])).tolist() == [True, False]


def mixture_of(components):
    return dist.MixtureSameFamily(dist.Categorical(torch.tensor([1.0, 3.0])), components)


def test_a_latent_mixture_has_the_support_of_its_components():
    """Torch registers no map for it."""
    pyro.set_rng_seed(0)

    def model():
        pyro.sample("x", mixture_of(dist.Normal(torch.tensor([-1.0, 1.0]), 0.7)))
        pyro.sample("g", mixture_of(dist.Gamma(torch.tensor([2.0, 5.0]), 1.0)))

    mcmc = MCMC(OHMC(model), 300, 200, num_chains=16, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)
    assert_mean(draws["x"], 0.5)
    assert_mean(draws["g"], 4.25)


@pytest.mark.parametrize(
    ("distribution", "sentence"),
    [
        pytest.param(
            lambda: mixture_of(dist.Uniform(torch.tensor([0.0, 1.0]), 3.0)),
            "no map to unconstrained space is known",
            marks=pytest.mark.skipif(
                not hasattr(constraints, "MixtureSameFamilyConstraint"), reason="torch gives it that of its components"
            ),
        ),
        (lambda: dist.Wishart(torch.tensor(4.0), torch.eye(2)), "Wishart has the support .*LKJCholesky"),
        (lambda: dist.Poisson(3.0), "Poisson has infinitely many values.*GammaPoisson"),
    ],
    ids=["mixture", "Wishart", "Poisson"],
)
@pytest.mark.filterwarnings("ignore:Singular sample")  # torch's own, of a Wishart distribution
def test_sites_without_a_map_are_named(distribution, sentence):
    def model():
        pyro.sample("other", dist.Normal(0.0, 1.0))
        pyro.sample("x", distribution())

    with pytest.raises(ValueError, match=f"Site 'x': .*{sentence}"):
        MCMC(OHMC(model), 5, 5, num_chains=2, disable_progbar=True).run()
