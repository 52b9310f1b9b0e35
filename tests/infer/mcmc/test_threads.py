"""Runs in threads of one process, which has one stack of effect handlers."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import MCMC, OHMC, SMC


def chains(model):
    mcmc = MCMC(OHMC(model), 100, 50, num_chains=16, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True, deterministic=True)


def particles(model):
    smc = SMC(OHMC(model), 64, 16, disable_progbar=True)
    smc.run()
    return smc.get_samples(group_by_chain=True)


@pytest.mark.parametrize("methods", [(chains, chains), (chains, particles)])
@pytest.mark.filterwarnings("ignore:The standard error of the log evidence")  # of so few particles
def test_runs_in_two_threads_see_their_own_models(methods):
    together = Barrier(2)

    def run(place):
        def model():
            x = pyro.sample(f"x{place}", dist.Normal(2.0 * place, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.0))

        together.wait()
        return methods[place](model)

    with ThreadPoolExecutor(2) as executor:
        found = list(executor.map(run, range(2)))
    for place, draws in enumerate(found):
        assert list(draws) == [f"x{place}"]
        assert_mean(draws[f"x{place}"].mean(1), 1.0 * place)
