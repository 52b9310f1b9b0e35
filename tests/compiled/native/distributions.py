"""Densities of all distributions of Pyro, of their parameters and, where these are continuous, of their values."""

from __future__ import annotations

from collections.abc import Callable

import pyro.distributions as dist
import torch
from pyro.distributions import Distribution
from torch import Tensor
from torch.distributions import biject_to

from pyro_manifold.distributions import (
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixBinghamVonMisesFisher,
    MatrixLangevin,
    NormalSingularValues,
    Ordered,
    OrderedHalfNormal,
)
from tests.compiled.native.cases import Case, Shape, as_numbers

Make = Callable[..., Distribution]


def latent(make: Make, *shapes: Shape) -> Case:
    """The density of a value, in unconstrained space, and of parameters."""
    example = make(*[torch.zeros(shape) for shape in shapes])
    unconstrained = biject_to(example.support).inverse_shape(example.shape())

    def log_density(value: Tensor, *parameters: Tensor) -> Tensor:
        made = make(*parameters)
        return made.log_prob(biject_to(made.support)(value)).sum()

    return Case(log_density, (tuple(unconstrained), *shapes))


def real(make: Make, *shapes: Shape) -> Case:
    """The density of three numbers and of parameters, for distributions that have no map from unconstrained space."""
    return Case(lambda value, *parameters: make(*parameters).log_prob(value).sum(), ((3,), *shapes))


def observed(make: Make, data: object, *shapes: Shape) -> Case:
    """The density of parameters, given data."""
    return Case(lambda *parameters: make(*parameters).log_prob(as_numbers(data)).sum(), shapes)


def scale(x: Tensor) -> Tensor:
    """Positive numbers."""
    return (0.5 * x).exp()


def share(x: Tensor) -> Tensor:
    """Numbers between 0 and 1."""
    return x.sigmoid()


def positive_definite(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


def lower(x: Tensor) -> Tensor:
    """Lower triangular with a positive diagonal."""
    return x.tril(-1) + x.diagonal(0, -2, -1).exp().diag_embed()


ROWS = torch.linspace(-1.5, 2, 15).reshape(5, 3)
COUNTS = torch.tensor([0.0, 2.0, 5.0])
POINTS = torch.nn.functional.normalize(ROWS.sin() + 0.3, dim=-1)
THREE: tuple[Shape, Shape] = ((3,), (3,))
NINE = (3, 3)

CONTINUOUS = {
    "AffineBeta": latent(lambda a, b: dist.AffineBeta(scale(a), scale(b), a, scale(b)), *THREE),
    "AsymmetricLaplace": latent(lambda a, b: dist.AsymmetricLaplace(a, scale(b), scale(a)), *THREE),
    "Beta": latent(lambda a, b: dist.Beta(scale(a), scale(b)), *THREE),
    "Cauchy": latent(lambda a, b: dist.Cauchy(a, scale(b)), *THREE),
    "Chi2": latent(lambda a: dist.Chi2(scale(a)), (3,)),
    "ContinuousBernoulli": latent(lambda a: dist.ContinuousBernoulli(logits=a), (3,)),
    "Dirichlet": latent(lambda a: dist.Dirichlet(scale(a)), (3,)),
    "Exponential": latent(lambda a: dist.Exponential(scale(a)), (3,)),
    "FisherSnedecor": latent(lambda a, b: dist.FisherSnedecor(scale(a), scale(b)), *THREE),
    "FoldedDistribution": latent(lambda a, b: dist.FoldedDistribution(dist.Normal(a, scale(b))), *THREE),
    "Gamma": latent(lambda a, b: dist.Gamma(scale(a), scale(b)), *THREE),
    "Gumbel": latent(lambda a, b: dist.Gumbel(a, scale(b)), *THREE),
    "HalfCauchy": latent(lambda a: dist.HalfCauchy(scale(a)), (3,)),
    "HalfNormal": latent(lambda a: dist.HalfNormal(scale(a)), (3,)),
    "InverseGamma": latent(lambda a, b: dist.InverseGamma(scale(a), scale(b)), *THREE),
    "Kumaraswamy": latent(lambda a, b: dist.Kumaraswamy(scale(a), scale(b)), *THREE),
    "LKJ": latent(lambda a: dist.LKJ(3, scale(a)), ()),
    "LKJCholesky": latent(lambda a: dist.LKJCholesky(3, scale(a)), ()),
    "Laplace": latent(lambda a, b: dist.Laplace(a, scale(b)), *THREE),
    "LogNormal": latent(lambda a, b: dist.LogNormal(a, scale(b)), *THREE),
    "Logistic": latent(lambda a, b: dist.Logistic(a, scale(b)), *THREE),
    "LogisticNormal": latent(lambda a, b: dist.LogisticNormal(a, scale(b)), *THREE),
    "LowRankMultivariateNormal": latent(
        lambda a, b, c: dist.LowRankMultivariateNormal(a, b, scale(c)), (3,), (3, 2), (3,)
    ),
    "MixtureOfDiagNormals": latent(lambda a, b, c: dist.MixtureOfDiagNormals(a, scale(b), c), (2, 3), (2, 3), (2,)),
    "MixtureOfDiagNormalsSharedCovariance": latent(
        lambda a, b, c: dist.MixtureOfDiagNormalsSharedCovariance(a, scale(b), c), (2, 3), (3,), (2,)
    ),
    "MixtureSameFamily": real(
        lambda a, b: dist.MixtureSameFamily(dist.Categorical(logits=a), dist.Normal(b, scale(a))), *THREE
    ),
    "MultivariateNormal": latent(lambda a, b: dist.MultivariateNormal(a, positive_definite(b)), (3,), NINE),
    "MultivariateNormal by its factor": latent(
        lambda a, b: dist.MultivariateNormal(a, scale_tril=lower(b)), (3,), NINE
    ),
    "MultivariateNormal by precision": latent(
        lambda a, b: dist.MultivariateNormal(a, precision_matrix=positive_definite(b)), (3,), NINE
    ),
    "MultivariateStudentT": latent(lambda a, b, c: dist.MultivariateStudentT(scale(c), a, lower(b)), (3,), NINE, ()),
    "Normal": latent(lambda a, b: dist.Normal(a, scale(b)), *THREE),
    "OMTMultivariateNormal": latent(lambda a, b: dist.OMTMultivariateNormal(a, lower(b)), (3,), NINE),
    "AVFMultivariateNormal": latent(lambda a, b, c: dist.AVFMultivariateNormal(a, lower(b), c), (3,), NINE, (2, 1, 3)),
    "Pareto": latent(lambda a, b: dist.Pareto(scale(a), scale(b)), *THREE),
    "ProjectedNormal": latent(lambda a: dist.ProjectedNormal(a), (3,)),
    "RelaxedBernoulli": latent(lambda a, b: dist.RelaxedBernoulli(scale(b), logits=a), (3,), ()),
    "RelaxedOneHotCategorical": latent(lambda a, b: dist.RelaxedOneHotCategorical(scale(b), logits=a), (3,), ()),
    "SineBivariateVonMises": latent(
        lambda a, b: dist.SineBivariateVonMises(a, b, scale(a), scale(b), 0.5 * (scale(a) * scale(b)).sqrt()), (), ()
    ),
    "SineBivariateVonMises of given parameters": latent(lambda: dist.SineBivariateVonMises(0.0, 0.5, 2.0, 1.0, 0.3)),
    "SineSkewed of given skewness": latent(
        lambda a, b: dist.SineSkewed(dist.VonMises(a, scale(b)).to_event(1), torch.tensor([0.3, -0.2])), (2,), (2,)
    ),
    "SineSkewed": latent(
        lambda a, b: dist.SineSkewed(dist.VonMises(a, scale(b)).to_event(1), 0.3 * b.tanh()), (2,), (2,)
    ),
    "SkewLogistic": latent(lambda a, b: dist.SkewLogistic(a, scale(b), scale(a)), *THREE),
    "SoftAsymmetricLaplace": latent(
        lambda a, b: dist.SoftAsymmetricLaplace(a, scale(b), scale(a), softness=scale(b)), *THREE
    ),
    "SoftLaplace": latent(lambda a, b: dist.SoftLaplace(a, scale(b)), *THREE),
    "StableWithLogProb": latent(lambda a, b: dist.StableWithLogProb(1 + 0.9 * share(a), b.tanh(), scale(a), b), *THREE),
    "StudentT": latent(lambda a, b: dist.StudentT(scale(a), b, scale(b)), *THREE),
    "TransformedDistribution": latent(
        lambda a, b: dist.TransformedDistribution(
            dist.Normal(a, scale(b)), [dist.transforms.SigmoidTransform(), dist.transforms.AffineTransform(0.0, 2.0)]
        ),
        *THREE,
    ),
    "TransformedDistribution by tanh": observed(
        lambda a, b: dist.TransformedDistribution(dist.Normal(a, scale(b)), [dist.transforms.TanhTransform()]),
        [0.5, -0.9, 0.0],
        *THREE,
    ),
    "TruncatedPolyaGamma": latent(lambda: dist.TruncatedPolyaGamma(torch.ones(3))),
    "Uniform": latent(lambda a, b: dist.Uniform(a, a + scale(b)), *THREE),
    "VonMises": latent(lambda a, b: dist.VonMises(a, scale(b)), *THREE),
    "VonMises3D": Case(
        lambda a, z: dist.VonMises3D(a).log_prob(torch.nn.functional.normalize(z, dim=-1)).sum(), ((3,), (5, 3))
    ),
    "Weibull": latent(lambda a, b: dist.Weibull(scale(a), scale(b)), *THREE),
    "Wishart": observed(
        lambda a: dist.Wishart(torch.tensor(4.0), positive_definite(a)), positive_definite(ROWS[:3]), NINE
    ),
    "Wishart of its degrees": observed(
        lambda a: dist.Wishart(3 + scale(a), torch.eye(3)), positive_definite(ROWS[:3]), ()
    ),
    "ExpandedDistribution": latent(lambda a: dist.Normal(a, 1.0).expand([2, 3]), (3,)),
    "ImproperUniform": latent(lambda: dist.ImproperUniform(dist.constraints.simplex, (), (3,))),
    "Independent": latent(lambda a, b: dist.Normal(a, scale(b)).to_event(1), *THREE),
    "MaskedDistribution": latent(lambda a: dist.Normal(a, 1.0).mask(torch.tensor([True, False, True])), (3,)),
    "MaskedMixture": latent(
        lambda a, b: dist.MaskedMixture(
            torch.tensor([True, False, True]), dist.Normal(a, 1.0), dist.Cauchy(0.0, scale(b))
        ),
        *THREE,
    ),
    "GroupedNormalNormal": observed(
        lambda a, b: dist.GroupedNormalNormal(a, scale(b), scale(a[0]), torch.tensor([0, 1, 1, 2, 0])),
        ROWS[:, 0],
        *THREE,
    ),
    "Delta": observed(lambda a: dist.Delta(torch.zeros(3), a), torch.zeros(3), (3,)),
    "Unit": observed(lambda a: dist.Unit(a), torch.empty(0), (3,)),
}


def standard(size: int, loc: Tensor | float = 0.0) -> Distribution:
    """Independent normal numbers around a place."""
    return dist.MultivariateNormal(loc + torch.zeros(size), torch.eye(size))


OTHERS = {
    "Bernoulli": observed(lambda a: dist.Bernoulli(logits=a), [0, 1, 1], (3,)),
    "Bernoulli of probabilities": observed(lambda a: dist.Bernoulli(share(a)), [0, 1, 1], (3,)),
    "BetaBinomial": observed(lambda a, b: dist.BetaBinomial(scale(a), scale(b), 6), COUNTS, *THREE),
    "Binomial": observed(lambda a: dist.Binomial(6, logits=a), COUNTS, (3,)),
    "Binomial of probabilities": observed(lambda a: dist.Binomial(6, share(a)), COUNTS, (3,)),
    "Categorical": observed(lambda a: dist.Categorical(logits=a), torch.tensor([0, 2, 1, 1]), (3,)),
    "Categorical of probabilities": observed(lambda a: dist.Categorical(scale(a)), torch.tensor([0, 2, 1, 1]), (3,)),
    "CoalescentTimes": observed(
        lambda a: dist.CoalescentTimes(torch.tensor([0.0, 0.5, 1.0, 2.0]), scale(a)), [-0.2, 0.3, 0.8], ()
    ),
    "DirichletMultinomial": observed(lambda a: dist.DirichletMultinomial(scale(a), 7), COUNTS, (3,)),
    "DiscreteHMM": observed(
        lambda a, b, c: dist.DiscreteHMM(a, b, dist.Normal(c, 1.0)), ROWS[:, 0], (2,), (2, 2), (2,)
    ),
    "ExtendedBetaBinomial": observed(lambda a, b: dist.ExtendedBetaBinomial(scale(a), scale(b), 6), COUNTS, *THREE),
    "ExtendedBinomial": observed(lambda a: dist.ExtendedBinomial(6, logits=a), COUNTS, (3,)),
    "GammaGaussianHMM": observed(
        lambda a, b: dist.GammaGaussianHMM(
            dist.Gamma(scale(a[0]), scale(a[1])),
            standard(2, a[:2]),
            b[:2, :2],
            standard(2),
            b[:2, :],
            standard(3),
            duration=3,
        ),
        ROWS[:3],
        (3,),
        NINE,
    ),
    "GaussianHMM": observed(
        lambda a, b: dist.GaussianHMM(standard(2, a[:2]), b[:2, :2], standard(2), b[:2, :], standard(3), duration=3),
        ROWS[:3],
        (3,),
        NINE,
    ),
    "GaussianMRF": observed(
        lambda a, b: dist.GaussianMRF(
            standard(2, a[:2]), dist.MultivariateNormal(torch.zeros(4), positive_definite(b)), standard(5)
        ),
        ROWS[:3],
        (3,),
        (4, 4),
    ),
    "IndependentHMM": observed(
        lambda a, b: dist.IndependentHMM(
            dist.GaussianHMM(
                standard(1).expand([3]),
                a.reshape(3, 1, 1, 1),
                standard(1),
                b[:, :1, None, None],
                standard(1),
                duration=3,
            )
        ),
        ROWS[:3],
        (3,),
        NINE,
    ),
    "CoalescentTimesWithRate": observed(
        lambda a: dist.CoalescentTimesWithRate(torch.tensor([0.5, 1.0, 1.5, 2.0]), scale(a)), [0.2, 0.3, 0.4], (4,)
    ),
    "GammaPoisson": observed(lambda a, b: dist.GammaPoisson(scale(a), scale(b)), COUNTS, *THREE),
    "Geometric": observed(lambda a: dist.Geometric(logits=a), COUNTS, (3,)),
    "LogNormalNegativeBinomial": observed(
        lambda a, b: dist.LogNormalNegativeBinomial(3.0, a, scale(b)), COUNTS, *THREE
    ),
    "Multinomial": observed(lambda a: dist.Multinomial(7, logits=a), COUNTS, (3,)),
    "Multinomial of probabilities": observed(lambda a: dist.Multinomial(7, scale(a)), COUNTS, (3,)),
    "NanMaskedNormal": observed(lambda a, b: dist.NanMaskedNormal(a, scale(b)), [0.5, torch.nan, 1.0], *THREE),
    "NanMaskedMultivariateNormal": observed(
        lambda a, b: dist.NanMaskedMultivariateNormal(a, positive_definite(b)), [0.5, torch.nan, 1.0], (3,), NINE
    ),
    "NegativeBinomial": observed(lambda a, b: dist.NegativeBinomial(scale(a), logits=b), COUNTS, *THREE),
    "OneHotCategorical": observed(lambda a: dist.OneHotCategorical(logits=a), [0, 1, 0], (3,)),
    "OneHotCategoricalStraightThrough": observed(
        lambda a: dist.OneHotCategoricalStraightThrough(logits=a), [0, 1, 0], (3,)
    ),
    "OneOneMatching": observed(lambda a: dist.OneOneMatching(a), torch.tensor([2, 0, 1]), NINE),
    "OneTwoMatching": observed(lambda a: dist.OneTwoMatching(a), torch.tensor([1, 0, 1, 0]), (4, 2)),
    "OrderedLogistic": observed(
        lambda a, b: dist.OrderedLogistic(a, b.exp().cumsum(-1)), torch.tensor([0, 2, 3]), *THREE
    ),
    "Poisson": observed(lambda a: dist.Poisson(scale(a)), COUNTS, (3,)),
    "RelaxedBernoulliStraightThrough": observed(
        lambda a: dist.RelaxedBernoulliStraightThrough(torch.tensor(0.5), logits=a), [0.2, 0.9, 0.5], (3,)
    ),
    "RelaxedOneHotCategoricalStraightThrough": observed(
        lambda a: dist.RelaxedOneHotCategoricalStraightThrough(torch.tensor(0.5), logits=a), [0.2, 0.3, 0.5], (3,)
    ),
    "SpanningTree": observed(lambda a: dist.SpanningTree(a), torch.tensor([[0, 1], [1, 2], [1, 3]]), (6,)),
    "ZeroInflatedDistribution": observed(
        lambda a, b: dist.ZeroInflatedDistribution(dist.Poisson(scale(a)), gate=share(b)), COUNTS, *THREE
    ),
    "ZeroInflatedNegativeBinomial": observed(
        lambda a, b: dist.ZeroInflatedNegativeBinomial(scale(a), logits=b, gate_logits=a), COUNTS, *THREE
    ),
    "ZeroInflatedPoisson": observed(lambda a, b: dist.ZeroInflatedPoisson(scale(a), gate_logits=b), COUNTS, *THREE),
}

MATRICES = {
    "MatrixAngularCentralGaussian": Case(
        lambda x, a: MatrixAngularCentralGaussian(positive_definite(a), 2).log_prob(x), ((4, 2), (4, 4))
    ),
    "MatrixBingham": Case(
        lambda x: MatrixBingham(torch.diag(torch.tensor([3.0, 1.0, 0.0, -2.0])), p=2).log_prob(x), ((4, 2),)
    ),
    "MatrixBinghamVonMisesFisher": Case(
        lambda x: MatrixBinghamVonMisesFisher(
            torch.eye(4), torch.diag(torch.tensor([1.0, 2.0])), torch.ones(4, 2)
        ).log_prob(x),
        ((4, 2),),
    ),
    "MatrixLangevin": Case(lambda x, a: MatrixLangevin(a).log_prob(x), ((4, 2), (4, 2))),
    "NormalSingularValues": latent(lambda a: NormalSingularValues(4, 2, scale(a)), ()),
    "Ordered": latent(lambda a: Ordered(dist.HalfCauchy(scale(a)), 3), ()),
    "OrderedHalfNormal": latent(lambda a: OrderedHalfNormal(3, scale(a)), ()),
}
"""Distributions of this package: matrices move on their manifold, where gradients are those in the space around it."""

DISTRIBUTIONS = CONTINUOUS | OTHERS | MATRICES
if hasattr(dist, "GeneralizedPareto"):  # of torch 2.8
    DISTRIBUTIONS["GeneralizedPareto"] = observed(
        lambda a, b: dist.GeneralizedPareto(-3 + a, scale(b), share(a)), COUNTS + 4, *THREE
    )
