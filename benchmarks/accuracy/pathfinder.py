"""Pathfinder on published posteriors: k̂ of its weights, that of a Gaussian with the posterior's moments, and errors.

    python -m benchmarks.accuracy.pathfinder
    python -m benchmarks.accuracy.pathfinder --only "schools|cointegration" --seeds 0 1 2

The Gaussian has the mean and covariance of draws by OHMC in unconstrained space, so that there is none for models
with manifolds. Errors are differences of the means of a posterior's functionals to those of OHMC, in its standard
deviations.
"""

import time
import warnings

import numpy as np
import pyro
import torch

from benchmarks.problems.published import published
from benchmarks.study import Study, largest, option, spread
from pyro_manifold.diagnostics import deterministic_by_chain, smoothed_weights
from pyro_manifold.infer import MCMC, OHMC, pathfinder


def problems(arguments):
    return published()


def exact_draws(posterior, arguments):
    """Draws of all sites by OHMC, ``{site: (chains, draws, ...)}``."""
    mcmc = MCMC(OHMC(posterior.model), arguments.draws, 500, num_chains=8, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True)


def khat_of_moments(target, draws):
    """k̂ of the Gaussian with the moments of draws; NaN for a model with manifolds."""
    if target.manifolds:
        return float("nan")
    positions = target.positions({name: x.flatten(0, 1) for name, x in draws.items()})
    x = torch.cat([value.reshape(len(value), -1) for value in positions.values()], 1)
    q = torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.mT))
    rows = q.sample((2000,))
    parts = rows.split([value[0].numel() for value in positions.values()], 1)
    sites = [
        {name: part[k].reshape(value.shape[1:]) for (name, value), part in zip(positions.items(), parts, strict=True)}
        for k in range(len(rows))
    ]
    log_density = -torch.stack([target.potential_fn(site) for site in sites])
    return smoothed_weights((log_density - q.log_prob(rows)).numpy())[1]


def error_of_means(posterior, program, draws, exact):
    """Largest difference of means, in standard deviations."""
    found, truth = (
        posterior.functionals(sites | deterministic_by_chain(program, sites, 2)) for sites in (draws, exact)
    )
    differences = [(found[name].mean() - value.mean()) / value.std() for name, value in truth.items()]
    return float(torch.stack(differences).abs().max())


def run(posterior, method, seed, arguments):
    pyro.set_rng_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.process_time()
        found = pathfinder(posterior.model)
        seconds = time.process_time() - begun
        exact = exact_draws(posterior, arguments)
        program, draws = found.posterior.program, dict(found.posterior.draws)
        with torch.no_grad():
            moments = khat_of_moments(program.target, exact)
        return {
            "khat": found.khat,
            "ess": found.ess,
            "seconds": seconds,
            "moments": moments,
            "error": error_of_means(posterior, program, draws, exact),
        }


STUDY = Study(
    text=__doc__,
    heads=("posterior",),
    columns={
        "k̂": spread("khat", ".2f"),
        "k̂ of its moments": lambda runs: f"{np.median([run['moments'] for run in runs]):.2f}".replace("nan", "–"),
        "ESS of the weights": spread("ess", ".0f"),
        "largest error of a mean": largest("error", ".2f"),
        "CPU s": ("seconds", ".1f"),
    },
    problems=problems,
    run=run,
    seeds=(0, 1, 2),
    options={"draws": option(500, "draws of each of OHMC's eight chains")},
)

main = STUDY.main

if __name__ == "__main__":
    main()
