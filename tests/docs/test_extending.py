"""Kernels of the page on extending the package are resumed in warm-up, and faults in such kernels have a sentence."""

import re
from pathlib import Path
from typing import NamedTuple

import pyro
import pytest
import torch

from pyro_manifold.infer import MCMC
from pyro_manifold.infer.mcmc.transitions import Executable, Fixed, StepSize, composition_of
from pyro_manifold.manifolds import Euclidean

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "extending.md"


@pytest.fixture(scope="module")
def page():
    """Names of the page's first two blocks, without the run of the first."""
    first, second, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    torch.set_default_dtype(torch.float64)
    exec(first.split("pyro.set_rng_seed(0)")[0] + second, names)
    return names


def halved(page):
    class Halving(page["MALA"]):
        def compose(self, problem, warmup_steps):
            manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
            move = Executable(page["GeodesicLangevin"](manifolds), problem.density)
            return composition_of(problem, move, page["Halved"](self._step_size, warmup_steps))

    return Halving(page["model"], step_size=3.0)


def test_an_adapter_is_resumed_in_warm_up(page, tmp_path):
    def interrupt(iteration):
        if (iteration.stage, iteration.index) == ("Warmup", 13):
            raise KeyboardInterrupt

    def run(**options):
        pyro.set_rng_seed(0)
        mcmc = MCMC(halved(page), 8, 20, num_chains=3, disable_progbar=True, **options)
        mcmc.run()
        return mcmc.get_samples()

    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="before the first draw"):
        run(store=tmp_path, consumers=[interrupt])
    resumed = run(store=tmp_path, resume=True)
    torch.testing.assert_close(resumed, run(), rtol=0, atol=0)


def test_a_state_that_is_changed_in_place_is_an_error(page):
    class InPlace(page["GeodesicLangevin"]):
        def finish(self, carried, kept, settings, noise):
            kept.state.energy.add_(1.0)
            return super().finish(carried, kept, settings, noise)

    class Kernel(page["MALA"]):
        def compose(self, problem, warmup_steps):
            manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
            return composition_of(problem, Executable(InPlace(manifolds), problem.density), Fixed(StepSize(0.1)))

    with pytest.raises(ValueError, match=r"InPlace.finish changes a tensor of the state in place"):
        MCMC(Kernel(page["model"]), 5, 5, num_chains=2, disable_progbar=True).run()


class Steps(NamedTuple):
    num_steps: int = 1


def test_settings_without_a_step_size(page):
    class Walk(page["GeodesicLangevin"]):
        def begin(self, state, settings, noise, density):
            return super().begin(state, StepSize(0.1), noise, density)

        def step(self, carried, settings, noise, density):
            return super().step(carried, StepSize(0.1), noise, density)

    class Kernel(page["MALA"]):
        def compose(self, problem, warmup_steps):
            manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
            return composition_of(problem, Executable(Walk(manifolds), problem.density), Fixed(Steps()))

    mcmc = MCMC(Kernel(page["model"]), 5, 0, num_chains=2, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_samples()["U"].shape == (10, 3, 2)
