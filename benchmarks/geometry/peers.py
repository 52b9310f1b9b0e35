"""One sampler on one posterior; `benchmarks.geometry.collinear` calls it in a process of its own.

    python -m benchmarks.geometry.peers POSTERIOR PEER CHAINS WARMUP DRAWS OPTIONS FILE

with OPTIONS as JSON leaves the draws ``(chains, draws, dimension)`` in a file of NumPy's and prints a line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from functools import partial

import numpy as np

from benchmarks.geometry.posteriors import POSTERIORS


def pyro_manifold(posterior, chains, warmup, draws, *, kernel, **options):
    """Vectorised chains of a kernel of this library."""
    import pyro
    import torch

    from pyro_manifold import infer

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    mcmc = infer.MCMC(
        getattr(infer, kernel)(posterior.pyro_model, **options), draws, warmup, num_chains=chains, disable_progbar=True
    )
    mcmc.run()
    report = mcmc.diagnostics()
    acceptance = float(np.mean(list(report["acceptance rate"].values())))
    divergences = sum(map(len, report["divergences"].values()))
    return mcmc.get_samples(group_by_chain=True)["w"].numpy(), {"acceptance": acceptance, "divergences": divergences}


def pyro_nuts(posterior, chains, warmup, draws, **options):
    """Pyro's NUTS, one chain after the other."""
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    runs = []
    for _ in range(chains):
        mcmc = MCMC(NUTS(posterior.pyro_model, **options), draws, warmup, disable_progbar=True)
        mcmc.run()
        runs.append(mcmc.get_samples()["w"].numpy())
    return np.stack(runs), {}


def numpyro_nuts(posterior, chains, warmup, draws, *, chain_method, **options):
    """NumPyro's NUTS; its warm-up is for each chain, also where chains are vectorised."""
    import jax
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    kernel = NUTS(posterior.numpyro_model, **options)
    sizes = {"num_warmup": warmup, "num_samples": draws, "num_chains": chains}
    mcmc = MCMC(kernel, **sizes, chain_method=chain_method, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), extra_fields=("num_steps",))
    steps = float(np.asarray(mcmc.get_extra_fields()["num_steps"]).mean())
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"]), {"steps": steps}


PEERS = {
    "MSD": partial(pyro_manifold, kernel="MSD"),
    "OHMC": partial(pyro_manifold, kernel="OHMC"),
    "Pyro NUTS": pyro_nuts,
    "NumPyro NUTS": numpyro_nuts,
}


def measure(posterior_name, peer, chains, warmup, draws, options):
    """Draws, and figures of the whole run: compiling, warm-up and draws."""
    warnings.filterwarnings("ignore")
    started, started_cpu = time.perf_counter(), time.process_time()
    found, figures = PEERS[peer](POSTERIORS[posterior_name], chains, warmup, draws, **options)
    times = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - started_cpu}
    return found, {**times, **figures, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    posterior_name, peer, chains, warmup, draws, options, path = sys.argv[1:]
    found, figures = measure(posterior_name, peer, int(chains), int(warmup), int(draws), json.loads(options))
    np.save(path, found)
    print(json.dumps(figures))
