"""Regressions: generalised, robust, sparse and nonlinear ones."""

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.posterior import Posterior, all_entries, some_entries
from benchmarks.problems.published import data
from benchmarks.problems.published.data import doubles, normals, standardised, uniforms


def normal_vector(name, scale, count):
    """A site of independent normal numbers around 0."""
    return pyro.sample(name, dist.Normal(0.0, scale).expand([count]).to_event(1))


def dugongs():
    """Growth that ends, Ratkowsky 1983, with the priors of BUGS examples volume 2, Dugongs, but a half-normal noise."""
    limit = pyro.sample("limit", dist.Normal(0.0, 1000.0))
    missing = pyro.sample("missing", dist.Normal(0.0, 1000.0))
    rate = pyro.sample("rate", dist.Uniform(0.5, 1.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("dugongs", 27):
        expected = limit - missing * rate**data.DUGONG_AGES
        pyro.sample("y", dist.Normal(expected, noise), obs=data.DUGONG_LENGTHS)


def robust():
    """Progression of diabetes, Efron et al. 2004, with Student-t noise, its prior by Juárez & Steel 2010."""
    from sklearn.datasets import load_diabetes

    loaded = load_diabetes()
    x, y = standardised(loaded.data), standardised(loaded.target)

    def model():
        slopes = normal_vector("slopes", 1.0, 10)
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        freedom = pyro.sample("freedom", dist.Gamma(2.0, 0.1))
        expected = level[..., None] + slopes @ x.mT
        pyro.sample("y", dist.StudentT(freedom[..., None], expected, noise[..., None]).to_event(1), obs=y)

    return model


def negative_binomial():
    """Counts in 150 flats, each with an exposure, as the roaches of Gelman & Hill 2007, section 6.2; simulated."""
    x, exposure = normals(30, 150, 3), 0.3 * normals(31, 150)
    generator = torch.Generator().manual_seed(32)
    expected = torch.exp(2.5 + exposure + x @ doubles([0.7, -0.5, -0.3]))
    y = torch.poisson(expected * torch.exp(normals(33, 150) - 0.5), generator=generator)

    def model():
        slopes = normal_vector("slopes", 2.5, 3)
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
        reciprocal = pyro.sample("reciprocal", dist.Exponential(1.0))
        logits = level[..., None] + exposure + slopes @ x.mT + reciprocal.log()[..., None]
        pyro.sample("y", dist.NegativeBinomial(1 / reciprocal[..., None], logits=logits).to_event(1), obs=y)

    return model


def ordered_logistic():
    """Answers on a scale of five, McCullagh 1980, of 200 persons with three attributes; simulated."""
    x = normals(40, 200, 3)
    noise = torch.logit(uniforms(41, 200))
    y = torch.bucketize(x @ doubles([1.0, -0.7, 0.2]) + noise, doubles([-2.0, -0.5, 0.7, 2.5]))

    def model():
        slopes = normal_vector("slopes", 2.5, 3)
        first = pyro.sample("first", dist.Normal(0.0, 5.0))
        gaps = pyro.sample("gaps", dist.Exponential(0.5).expand([3]).to_event(1))
        bounds = first[..., None] + torch.cat([torch.zeros_like(gaps[..., :1]), gaps.cumsum(-1)], -1)
        pyro.sample("y", dist.OrderedLogistic(slopes @ x.mT, bounds[..., None, :]).to_event(1), obs=y)

    return model


def softmax():
    """Species of iris, Fisher 1936, relative to the first of them."""
    from sklearn.datasets import load_iris

    loaded = load_iris()
    x, y = standardised(loaded.data), torch.as_tensor(loaded.target)

    def model():
        slopes = pyro.sample("slopes", dist.Normal(0.0, 2.5).expand([2, 4]).to_event(2))
        levels = normal_vector("levels", 5.0, 2)
        logits = levels[..., None, :] + x @ slopes.mT
        logits = torch.cat([torch.zeros_like(logits[..., :1]), logits], -1)
        pyro.sample("y", dist.Categorical(logits=logits).to_event(1), obs=y)

    return model


def breast_cancer():
    """Return 30 standardised attributes of tumours, and whether each is benign."""
    from sklearn.datasets import load_breast_cancer

    loaded = load_breast_cancer()
    return standardised(loaded.data), doubles(loaded.target)


def logistic():
    """Wisconsin breast cancer, Street et al. 1993, 30 columns that depend on each other."""
    x, y = breast_cancer()

    def model():
        slopes = normal_vector("slopes", 2.5, 30)
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
        pyro.sample("y", dist.Bernoulli(logits=level[..., None] + slopes @ x.mT).to_event(1), obs=y)

    return model


SPARSE = (50, 80, 15)


def sparse_data(seed, rows, columns):
    """Rows of independent attributes, of which the first four have an effect."""
    x = normals(seed, rows, columns)
    return x, x[:, :4] @ doubles([2.0, -1.5, 1.0, 0.5]) + normals(seed + 1, rows)


def horseshoe():
    """Carvalho, Polson & Scott 2010, slopes as products as in the manual of Stan; simulated."""
    x, y = sparse_data(*SPARSE)

    def model():
        overall = pyro.sample("overall", dist.HalfCauchy(1.0))
        own = pyro.sample("own", dist.HalfCauchy(1.0).expand([15]).to_event(1))
        standard = normal_vector("standard", 1.0, 15)
        noise = pyro.sample("noise", dist.HalfNormal(2.0))
        slopes = standard * own * overall[..., None]
        pyro.sample("y", dist.Normal(slopes @ x.mT, noise[..., None]).to_event(1), obs=y)

    return model


def of_horseshoe(draws):
    """Slopes, and logarithms of scales with heavy tails."""
    slopes = draws["standard"] * draws["own"] * draws["overall"][..., None]
    logs = {name: draws[name].log() for name in ("overall", "own", "noise")}
    return all_entries({"slopes": slopes, **logs})


def regularised_horseshoe():
    """Piironen & Vehtari 2017, with four slopes expected to matter and slabs of scale 2; simulated."""
    x, y = sparse_data(60, 50, 30)
    guess = 4 / 26 / 50**0.5

    def model():
        overall = pyro.sample("overall", dist.HalfCauchy(guess))
        own = pyro.sample("own", dist.HalfCauchy(1.0).expand([30]).to_event(1))
        slab = pyro.sample("slab", dist.InverseGamma(2.0, 8.0))[..., None]
        standard = normal_vector("standard", 1.0, 30)
        noise = pyro.sample("noise", dist.HalfNormal(2.0))
        squares = (own * overall[..., None]).square()
        slopes = standard * (slab * squares / (slab + squares)).sqrt()
        pyro.sample("y", dist.Normal(slopes @ x.mT, noise[..., None]).to_event(1), obs=y)

    return model


def of_regularised_horseshoe(draws):
    """Slopes, and logarithms of scales with heavy tails."""
    squares, slab = (draws["own"] * draws["overall"][..., None]).square(), draws["slab"][..., None]
    slopes = draws["standard"] * (slab * squares / (slab + squares)).sqrt()
    return all_entries({"slopes": slopes, **{name: draws[name].log() for name in ("overall", "slab", "noise")}})


def weibull():
    """Remissions of leukaemia, Freireich et al. 1963, censored, with Weibull times."""
    shape = pyro.sample("shape", dist.LogNormal(0.0, 1.0))
    level = pyro.sample("level", dist.Normal(0.0, 5.0))
    effect = pyro.sample("effect", dist.Normal(0.0, 2.5))
    with pyro.plate("patients", 42):
        ratio = shape * (data.REMISSIONS.log() - level - effect * data.TREATED)
        pyro.factor("times", data.RELAPSED * (shape.log() + ratio - data.REMISSIONS.log()) - ratio.exp())


def points_of_a_curve():
    x = torch.linspace(-5, 5, 40, dtype=torch.float64)
    return x, torch.sin(1.5 * x) + 0.3 * x + 0.4 * normals(70, 40)


def gaussian_process():
    """Rasmussen & Williams 2006, chapter 5, at 40 points; simulated."""
    x, y = points_of_a_curve()
    squares, identity = (x[:, None] - x).square(), torch.eye(40, dtype=torch.float64)

    def model():
        length = pyro.sample("length", dist.InverseGamma(5.0, 5.0))
        size = pyro.sample("size", dist.HalfNormal(2.0))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        length, size, noise = (value[..., None, None] for value in (length, size, noise))
        covariance = size**2 * torch.exp(-0.5 * squares / length**2) + noise**2 * identity
        pyro.sample("y", dist.MultivariateNormal(torch.zeros_like(y), covariance), obs=y)

    return model


def regressions():
    return {
        "dugongs": Posterior(dugongs, all_entries),
        "robust regression of diabetes": Posterior(robust(), all_entries),
        "negative-binomial regression": Posterior(negative_binomial(), all_entries),
        "ordered logistic regression": Posterior(ordered_logistic(), all_entries),
        "softmax regression of iris": Posterior(softmax(), all_entries),
        "logistic regression of breast cancer": Posterior(logistic(), some_entries),
        "horseshoe": Posterior(horseshoe(), of_horseshoe),
        "regularised horseshoe": Posterior(regularised_horseshoe(), of_regularised_horseshoe),
        "Weibull times of leukaemia": Posterior(weibull, all_entries),
        "Gaussian process": Posterior(gaussian_process(), all_entries),
    }
