"""Time series, written without loops over time."""

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.posterior import Posterior, all_entries, some_entries
from benchmarks.problems.published import data
from benchmarks.problems.published.data import doubles, normals


def discounted(values, factor):
    """Σₛ factorᵗ⁻ˢ valuesₛ over s ≤ t, for ``(..., times)`` and positive factors ``(...)``."""
    times = torch.arange(values.shape[-1], dtype=values.dtype)
    lags = times[:, None] - times
    weights = torch.exp(lags.clamp(min=0) * factor.log()[..., None, None]).tril()
    return (weights @ values[..., None])[..., 0]


def autoregression():
    """Five lags, posteriordb's ``arK-arK``, of 100 points; simulated."""
    x = [*normals(80, 5)]
    for shock in 0.5 * normals(81, 100):
        x.append(0.5 * x[-1] - 0.3 * x[-2] + 0.2 * x[-3] + 0.1 * x[-5] + shock)
    x = torch.stack(x)
    lagged = x.unfold(0, 5, 1)[:-1]

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 10.0))
        slopes = pyro.sample("slopes", dist.Normal(0.0, 10.0).expand([5]).to_event(1))
        noise = pyro.sample("noise", dist.HalfCauchy(2.5))
        pyro.sample("y", dist.Normal(level[..., None] + slopes @ lagged.mT, noise[..., None]).to_event(1), obs=x[5:])

    return model


def counts_over_time():
    true = discounted(0.3 * normals(90, 80), doubles(0.9))
    return torch.poisson(torch.exp(1 + true), generator=torch.Generator().manual_seed(91))


def latent_autoregression():
    """Poisson counts whose log rate is an AR(1), centred, Zeger 1988; 80 points, simulated."""
    counts = counts_over_time()

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
        persistence = pyro.sample("persistence", dist.Beta(5.0, 1.5))
        shock = pyro.sample("shock", dist.HalfNormal(0.5))
        # The density of the states is that of their shocks.
        state = pyro.sample("state", dist.Normal(0.0, 1.0).expand([80]).mask(False).to_event(1))
        first = dist.Normal(0.0, shock / (1 - persistence**2).sqrt()).log_prob(state[..., 0])
        steps = dist.Normal(persistence[..., None] * state[..., :-1], shock[..., None]).log_prob(state[..., 1:])
        pyro.factor("states", first + steps.sum(-1))
        pyro.sample("y", dist.Poisson((level[..., None] + state).exp()).to_event(1), obs=counts)

    return model


def returns():
    true = discounted(0.25 * normals(100, 100), doubles(0.95))
    return torch.exp(0.5 * (true - 0.5)) * normals(101, 100)


def stochastic_volatility():
    """Kim, Shephard & Chib 1998, not centred, as in the manual of Stan; 100 points, simulated."""
    y = returns()

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
        persistence = pyro.sample("persistence", dist.Beta(20.0, 1.5))
        shock = pyro.sample("shock", dist.HalfCauchy(1.0))
        standard = pyro.sample("standard", dist.Normal(0.0, 1.0).expand([100]).to_event(1))
        first = standard[..., :1] / (1 - persistence**2).sqrt()[..., None]
        state = shock[..., None] * discounted(torch.cat([first, standard[..., 1:]], -1), persistence)
        pyro.sample("y", dist.Normal(0.0, torch.exp(0.5 * (level[..., None] + state))).to_event(1), obs=y)

    return model


def garch():
    """GARCH(1,1), Bollerslev 1986, as posteriordb's ``garch-garch11``; 120 points, simulated."""
    y, variance = [], doubles(1.0)
    for standard in normals(110, 120):
        y.append(variance.sqrt() * standard)
        variance = 0.3 + 0.3 * y[-1] ** 2 + 0.5 * variance
    y = 1.0 + torch.stack(y)

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 10.0))
        base = pyro.sample("base", dist.HalfNormal(2.0))
        of_square = pyro.sample("of_square", dist.Uniform(0.0, 1.0))
        share = pyro.sample("share", dist.Uniform(0.0, 1.0))
        squares = (y[:-1] - level[..., None]).square()
        steps = base[..., None] + of_square[..., None] * squares
        first = torch.ones_like(steps[..., :1])
        variance = discounted(torch.cat([first, steps], -1), share * (1 - of_square))
        pyro.sample("y", dist.Normal(level[..., None], variance.sqrt()).to_event(1), obs=y)

    return model


def of_garch(draws):
    return all_entries({**draws, "of_variance": draws["share"] * (1 - draws["of_square"])})


def local_level():
    """The flow of the Nile, Durbin & Koopman 2012, section 2.2, with a drift and not centred, in units of 100."""
    first = pyro.sample("first", dist.Normal(10.0, 5.0))
    drift = pyro.sample("drift", dist.Normal(0.0, 0.2))
    shock = pyro.sample("shock", dist.HalfNormal(1.0))
    noise = pyro.sample("noise", dist.HalfNormal(2.0))
    standard = pyro.sample("standard", dist.Normal(0.0, 1.0).expand([99]).to_event(1))
    later = first[..., None] + (drift[..., None] + shock[..., None] * standard).cumsum(-1)
    level = torch.cat([first[..., None], later], -1)
    pyro.sample("y", dist.Normal(level, noise[..., None]).to_event(1), obs=data.NILE / 100)


def product_of_logs(matrices):
    """The logarithm of the product of 2ᵏ matrices, ``(..., 2ᵏ, n, n)``, given and computed in logarithms."""
    while matrices.shape[-3] > 1:
        left, right = matrices[..., ::2, :, :], matrices[..., 1::2, :, :]
        matrices = (left[..., :, :, None] + right[..., None, :, :]).logsumexp(-2)
    return matrices[..., 0, :, :]


def hidden_markov():
    """Two states with ordered means, posteriordb's ``hmm_example``, summed out; 64 points, simulated."""
    switches = (torch.sin(normals(120, 64).cumsum(0)) > 0).double()
    y = 1.0 + 2.0 * switches + 0.8 * normals(121, 64)

    def model():
        stay = pyro.sample("stay", dist.Beta(4.0, 2.0).expand([2]).to_event(1))
        low = pyro.sample("low", dist.Normal(0.0, 5.0))
        gap = pyro.sample("gap", dist.HalfNormal(5.0))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        means = low[..., None] + torch.stack([torch.zeros_like(gap), gap], -1)
        likelihood = dist.Normal(means[..., None, :], noise[..., None, None]).log_prob(y[:, None])
        transition = torch.stack([stay, 1 - stay], -1)
        transition = torch.stack([transition[..., 0, :], transition[..., 1, :].flip(-1)], -2)
        steps = transition.log()[..., None, :, :] + likelihood[..., None, :]
        pyro.factor("y", product_of_logs(steps).logsumexp((-2, -1)) - torch.log(doubles(2.0)))

    return model


def time_series():
    return {
        "AR(5)": Posterior(autoregression(), all_entries),
        "latent AR(1) of counts": Posterior(latent_autoregression(), some_entries),
        "stochastic volatility": Posterior(stochastic_volatility(), some_entries),
        "GARCH(1,1)": Posterior(garch(), of_garch),
        "local level of the Nile": Posterior(local_level, some_entries),
        "hidden Markov model": Posterior(hidden_markov(), all_entries),
    }
