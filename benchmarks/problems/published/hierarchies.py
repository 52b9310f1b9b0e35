"""Groups that share a distribution, most of them in the centred form."""

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.posterior import Posterior, some_entries
from benchmarks.problems.published import data
from benchmarks.problems.published.data import normals


def eight_schools_centred():
    """Rubin 1981 with the priors of posteriordb's ``eight_schools_centered``."""
    level = pyro.sample("level", dist.Normal(0.0, 5.0))
    spread = pyro.sample("spread", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        effects = pyro.sample("effects", dist.Normal(level, spread))
        pyro.sample("y", dist.Normal(effects, data.SCHOOL_ERRORS), obs=data.SCHOOL_EFFECTS)


def eight_schools_non_centred():
    """Rubin 1981 with the priors of posteriordb's ``eight_schools_noncentered``."""
    level = pyro.sample("level", dist.Normal(0.0, 5.0))
    spread = pyro.sample("spread", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        standard = pyro.sample("standard", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level + spread * standard, data.SCHOOL_ERRORS), obs=data.SCHOOL_EFFECTS)


def rats():
    """Growth curves of Gelfand et al. 1990 with half-Cauchy priors of their spread, as Gelman 2006 advises."""
    level = pyro.sample("level", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
    spread = pyro.sample("spread", dist.HalfCauchy(torch.tensor([25.0, 5.0], dtype=torch.float64)).to_event(1))
    noise = pyro.sample("noise", dist.HalfCauchy(10.0))
    with pyro.plate("rats", 30):
        curve = pyro.sample("curve", dist.Normal(level, spread).to_event(1))
        expected = curve[..., :1] + curve[..., 1:] * (data.RAT_AGES - 22)
        pyro.sample("y", dist.Normal(expected, noise[..., None]).to_event(1), obs=data.RAT_WEIGHTS)


def pumps():
    """Failures of pumps, Gaver & O'Muircheartaigh 1987, with the priors of BUGS examples volume 1, Pumps."""
    shape = pyro.sample("shape", dist.Exponential(1.0))
    rate = pyro.sample("rate", dist.Gamma(0.1, 1.0))
    with pyro.plate("pumps", 10):
        failing = pyro.sample("failing", dist.Gamma(shape, rate))
        pyro.sample("y", dist.Poisson(failing * data.PUMP_HOURS), obs=data.PUMP_FAILURES)


def seed_design():
    """Return the columns of level, kind of seed, kind of root and their product, ``(21, 4)``."""
    kind, root = data.SEED_KIND, data.SEED_ROOT
    return torch.stack([torch.ones_like(kind), kind, root, kind * root], -1)


def seeds():
    """Random effects on a logistic scale, Crowder 1978; the scale of the effects has a half-Cauchy prior."""
    slopes = pyro.sample("slopes", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    spread = pyro.sample("spread", dist.HalfCauchy(1.0))
    design = seed_design()
    with pyro.plate("plates", 21):
        own = pyro.sample("own", dist.Normal((design * slopes).sum(-1), spread))
        pyro.sample("y", dist.Binomial(data.SEEDS, logits=own), obs=data.SEEDS_GERMINATED)


def baseball():
    """Chances of hits, Efron & Morris 1975, with the priors of Carpenter's case study for Stan, 2016."""
    mean = pyro.sample("mean", dist.Uniform(0.0, 1.0))
    size = pyro.sample("size", dist.Pareto(1.0, 1.5))
    with pyro.plate("players", 18):
        chance = pyro.sample("chance", dist.Beta(mean * size, (1 - mean) * size))
        pyro.sample("y", dist.Binomial(45, chance), obs=data.HITS)


def epilepsy():
    """Poisson counts with effects of 30 patients and of their four visits, as in BUGS volume 1, Epil; simulated."""
    treated = (torch.arange(30) % 2).double()
    base = 0.7 * normals(10, 30)
    rates = torch.exp(1.8 + base - 0.4 * treated + 0.5 * normals(11, 30) + 0.35 * normals(12, 4, 30))
    counts = torch.poisson(rates, generator=torch.Generator().manual_seed(13))
    design = torch.stack([torch.ones_like(base), base, treated, base * treated], -1)

    def model():
        slopes = pyro.sample("slopes", dist.Normal(0.0, 10.0).expand([4]).to_event(1))
        between = pyro.sample("between", dist.HalfNormal(1.0))
        within = pyro.sample("within", dist.HalfNormal(1.0))
        with pyro.plate("patients", 30):
            patient = pyro.sample("patient", dist.Normal(0.0, between))
            with pyro.plate("visits", 4):
                expected = (design * slopes).sum(-1) + patient
                log_rate = pyro.sample("log_rate", dist.Normal(expected, within))
                pyro.sample("y", dist.Poisson(log_rate.exp()), obs=counts)

    return model


def houses():
    """Return county, floor and logarithm of radon of 200 simulated houses."""
    county = (20 * normals(20, 200).abs()).long() % 20
    floor = (normals(21, 200) > 0.8).double()
    levels, slopes = 1.4 + 0.35 * normals(22, 20), -0.7 + 0.3 * normals(23, 20)
    return county, floor, levels[county] + slopes[county] * floor + 0.75 * normals(24, 200)


def radon():
    """Intercepts and slopes of 20 counties, not centred, as in Gelman & Hill 2007, section 13.1; simulated."""
    county, floor, y = houses()

    def model():
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        spread = pyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        standard = pyro.sample("standard", dist.Normal(0.0, 1.0).expand([20, 2]).to_event(2))
        own = (mean[..., None, :] + spread[..., None, :] * standard)[..., county, :]
        expected = own[..., 0] + own[..., 1] * floor
        pyro.sample("y", dist.Normal(expected, noise[..., None]).to_event(1), obs=y)

    return model


def hierarchies():
    return {
        "eight schools, centred": Posterior(eight_schools_centred, some_entries),
        "eight schools, non-centred": Posterior(eight_schools_non_centred, some_entries),
        "rats": Posterior(rats, some_entries), "pumps": Posterior(pumps, some_entries),
        "seeds": Posterior(seeds, some_entries), "baseball": Posterior(baseball, some_entries),
        "epilepsy": Posterior(epilepsy(), some_entries), "radon": Posterior(radon(), some_entries),
    }  # fmt: skip
