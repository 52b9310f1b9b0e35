"""A short run that tests store, stop and resume."""

import os
import signal
from functools import cache

import pyro
import pyro.distributions as dist
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, Store

WARMUP, DRAWS, CHAINS = 12, 24, 3


def positive(pull=4.0):
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.sample("s", dist.LogNormal(0.0, 1.0))
    pyro.factor("pull", pull * U[0, 0])


def made(
    folder=None,
    *,
    resume=False,
    kernel=None,
    seed=1,
    draws=DRAWS,
    args=(),
    stop_at=None,
    by=None,
    loader=None,
    **options,
):
    """A run; ``stop_at`` interrupts it in that iteration, by a signal unless ``by`` raises something."""
    pyro.set_rng_seed(seed)

    def stop(kernel, params, stage, index):
        if stop_at == (stage, index):
            if by is not None:
                raise by
            os.kill(os.getpid(), signal.SIGINT)

    store = folder if folder is None or isinstance(folder, Store) else Store(folder, seconds=1e-6, draws=7)
    warmup_steps = options.pop("warmup_steps", WARMUP)
    chains = options.pop("num_chains", CHAINS)
    mcmc = MCMC(
        kernel or OHMC(positive),
        draws,
        warmup_steps,
        num_chains=chains,
        disable_progbar=True,
        store=store,
        resume=resume,
        hook_fn=stop if stop_at else None,
        **options,
    )
    mcmc.run(*args, data_loader=loader)
    return mcmc


@cache
def whole(**options):
    """Draws and statistics of a run that nobody stored or stopped."""
    return contents(made(**options))


def contents(run):
    return run.get_samples(group_by_chain=True), run.get_extra_fields(group_by_chain=True)


def same(run, expected):
    """Draws and statistics are the same, bit for bit."""
    return all(
        a.keys() == b.keys() and all(_is_equal(name, a[name], b[name]) for name in a)
        for a, b in zip(contents(run), expected, strict=True)
    )


def _is_equal(name, a, b):
    if name == "orthogonality_error":  # computed for all iterations of a call at once, which are others after a stop
        return torch.allclose(a, b, rtol=0, atol=100 * torch.finfo(a.dtype).eps)
    return torch.equal(a, b)
