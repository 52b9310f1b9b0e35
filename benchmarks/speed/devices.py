"""Log density with gradient, and a leapfrog step, of many chains on the CPU and on a GPU.

    python -m benchmarks.speed.devices                          the CPU, and CUDA where there is a device
    python -m benchmarks.speed.devices --chains 64 --device cpu
    python -m pytest tests/test_cuda.py                         the tests that need a device

Milliseconds of a call for all chains, the fastest of repeated ones, in float64; a GPU is synchronised after each call.
On the CPU steps are native code, with one thread; on a GPU they are the traced graph of the density and torch's
operators, and ``--compile`` adds `torch.compile`. A step is a tenth of a trajectory of ten.
"""

import argparse

import pyro
import pyro.distributions as dist
import torch

from benchmarks.machine import machine
from benchmarks.tables import show
from benchmarks.timing import best_time
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC

STEPS = 10


def langevin(device):
    """A matrix Langevin distribution on V(20,3)."""
    F = torch.linspace(1, 30, 60, device=device).reshape(20, 3)

    def model():
        X = pyro.sample("X", StiefelUniform(20, 3, device=device))
        pyro.factor("density", (F * X).sum((-2, -1)))

    return model


def components(device):
    """Three principal components of 500 rows of 20 numbers, by their covariance."""
    y = torch.randn(500, 20, generator=torch.Generator().manual_seed(0)).to(device)
    zeros, ones = torch.zeros(20, device=device), torch.ones(3, device=device)

    def model():
        X = pyro.sample("X", StiefelUniform(20, 3, device=device))
        scales = pyro.sample("scales", dist.HalfNormal(ones).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(ones[:1]).to_event(1))
        shape = X * scales[..., None, :], noise.square().expand(*noise.shape[:-1], 20)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.LowRankMultivariateNormal(zeros, *shape), obs=y)

    return model


def regression(device):
    """A logistic regression of 300 rows on 30 numbers."""
    x = torch.randn(300, 30, generator=torch.Generator().manual_seed(0)).to(device)
    y = (x[:, 0] > 0).to(x.dtype)
    zeros = torch.zeros(30, device=device)

    def model():
        b = pyro.sample("b", dist.Normal(zeros, 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

    return model


MODELS = {"Langevin V(20,3)": langevin, "components V(20,3)": components, "logistic regression": regression}


def measured(model, chains, device, compiled):
    """Milliseconds of log density with gradient and of a step, and the form of trajectories."""
    kernel = OHMC(model, step_size=1e-3, num_steps=STEPS, adapt_step_size=False, jit_compile=compiled)
    run = kernel.prepare(chains, 0, None)
    if device == "cpu":
        run.compilation.make(run.state)
    trajectory, settings = run.transitions[-1], run.tuning.settings(1)

    def synchronised(function):
        def call():
            function()
            if device != "cpu":
                torch.cuda.synchronize()

        return call

    density = best_time(synchronised(lambda: run.problem.potential(run.state.position)))
    step = best_time(synchronised(lambda: trajectory(run.state, settings, run.random))) / STEPS
    form = trajectory.graph.backend if trajectory.graph.is_graph else trajectory.step.graph.backend
    return 1e3 * density, 1e3 * step, form


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--chains", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--device", nargs="+", default=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
    parser.add_argument("--compile", action="store_true", help="steps by torch.compile on the GPU")
    parser.add_argument("--only", default="", help="part of the names of models")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    print(machine(1), *(torch.cuda.get_device_name() for device in arguments.device if device != "cpu"), "\n")

    def rows():
        for name, make in MODELS.items():
            for chains in arguments.chains if arguments.only in name else []:
                for device in arguments.device:
                    found = measured(make(device), chains, device, arguments.compile and device != "cpu")
                    yield name, chains, device, *(f"{value:.3f}" for value in found[:2]), found[2]

    show(("model", "chains", "device", "density and gradient, ms", "step, ms", "form"), rows())


if __name__ == "__main__":
    main()
