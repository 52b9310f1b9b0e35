"""Warnings of samplers are classes that name chains and site, in shards and copies too, and no text is searched."""

import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import HotMomenta, MissedMass, RunsDiffer, SamplerWarning, StuckChains
from pyro_manifold.infer import MCMC, OHMC, Shards
from pyro_manifold.infer.mcmc.running import warn_of_chains

PACKAGE = Path(__file__).parents[2] / "pyro_manifold"


def normal():
    pyro.sample("x", dist.Normal(0.0, 1.0))


def test_chains_that_hardly_move_are_named():
    x = torch.randn(3, 100).cumsum(1)
    x[1] = 0.0
    accepted = (x.diff(dim=1, prepend=x[:, :1] + 1) != 0).to(torch.get_default_dtype())
    with pytest.warns(StuckChains) as caught:
        warn_of_chains({"x": x}, {"acceptance_rate": accepted, "accepted": accepted > 0})
    assert (caught[0].message.chains, caught[0].message.remedy) == ((1,), "warmup_steps")


def test_the_class_of_a_warning_in_a_shard_is_kept():
    def run(shards):
        kernel = OHMC(normal, step_size=1e3, num_steps=1, adapt_step_size=False, adapt_mass_matrix=False)
        method = Shards(ThreadPoolExecutor(1), 2) if shards else "vectorized"
        MCMC(kernel, 20, 0, num_chains=2, chain_method=method, disable_progbar=True).run()

    with warnings.catch_warnings():
        warnings.simplefilter("error", StuckChains)
        for shards in (False, True):
            with pytest.raises(StuckChains, match=r"fewer than 5 %"):
                run(shards)


@pytest.mark.parametrize("kind", [SamplerWarning, StuckChains, HotMomenta, MissedMass, RunsDiffer])
def test_copies_have_the_same_attributes(kind):
    copy = pickle.loads(pickle.dumps(kind("words", chains=[2], site="U", remedy="step_size")))
    assert (type(copy), str(copy), copy.chains, copy.site, copy.remedy) == (kind, "words", (2,), "U", "step_size")


def test_no_warning_is_known_by_its_words():
    """Only messages of other packages are searched, and these are ignored."""
    searched = re.compile(
        r"in str\(\w+\.message\)|str\(\w+\.message\)\.(startswith|find)|filterwarnings\(\"ignore\", f"
    )
    assert not [path.name for path in PACKAGE.rglob("*.py") if searched.search(path.read_text())]
