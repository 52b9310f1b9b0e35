"""Time spent before a small model is sampled: imports, tracing and checks, compiling; and a second time.

    python -m benchmarks.speed.set_up
    python -m benchmarks.speed.set_up --network

A matrix Langevin density on V(10,3), 4 chains of 500 + 500 iterations, each time in a fresh process on one core; the
second process finds what the first has compiled. ``--network``: processor seconds of `OSGHMC` for VGG-16 with a quarter
of the channels and 13 orthonormal kernels, on batches of 128 generated images, before the first step.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.machine import confine, machine
from benchmarks.tables import show

PARTS = (
    "import torch and pyro", "import pyro_manifold", "trace and check", "first iteration", "999 others",
    "of it compiling",
)  # fmt: skip


def parts():
    """Seconds of each, in this process."""
    clock = [time.perf_counter()]
    import pyro
    import torch

    clock.append(time.perf_counter())
    from pyro_manifold.compiled.native import loop
    from pyro_manifold.distributions import StiefelUniform
    from pyro_manifold.infer import MCMC, OHMC

    clock.append(time.perf_counter())
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    F = torch.linspace(-5, 5, 30).reshape(10, 3)

    def model():
        pyro.factor("Langevin", (F * pyro.sample("Q", StiefelUniform(10, 3))).sum())

    compiled, compiling = loop.compiled, []

    def timed(*arguments):
        started = time.perf_counter()
        result = compiled(*arguments)
        compiling.append(time.perf_counter() - started)
        return result

    loop.compiled = timed
    kernel = OHMC(model)
    run_of = kernel.run_of

    def prepared(*arguments):
        run = run_of(*arguments)
        clock.append(time.perf_counter())
        return run

    def look(*_):
        if len(clock) == len(PARTS) - 2:
            clock.append(time.perf_counter())

    kernel.run_of = prepared
    MCMC(kernel, 500, 500, num_chains=4, hook_fn=look, disable_progbar=True).run()
    clock.append(time.perf_counter())
    seconds = [later - earlier for earlier, later in itertools.pairwise(clock)]
    return dict(zip(PARTS, [*seconds, sum(compiling)], strict=True))


def of_a_network(batch=128, thinner=4):
    """Processor seconds of preparation, and of a gradient by the model and by its graph."""
    import pyro
    import torch

    from benchmarks.papers.ohmc import vgg
    from pyro_manifold.density import value_and_gradient
    from pyro_manifold.infer import OSGHMC

    torch.set_default_dtype(torch.float32)
    pyro.set_rng_seed(0)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    model = vgg.posterior(vgg.network("orthogonal", thinner), batch, "cpu")
    clock = [time.process_time()]
    kernel = OSGHMC(model, step_size=1e-5, init_strategy=vgg.initial_value, integrator="euler")
    problem = kernel.prepare(1, 1, None, images, labels).problem
    clock.append(time.process_time())
    one = {name: value[0] for name, value in problem.initial_values.items()}
    value_and_gradient(problem.target.potential_fn, one)
    clock.append(time.process_time())
    problem.batched(problem.initial_values)
    clock.append(time.process_time())
    return dict(zip(NETWORK, (later - earlier for earlier, later in itertools.pairwise(clock)), strict=True))


NETWORK = ("preparation", "a gradient by the model", "a gradient by the graph")


def apart(cache):
    """The same in another process, whose native code is kept in this folder."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYRO_MANIFOLD_CACHE": cache}
    command = [sys.executable, "-m", "benchmarks.speed.set_up", "--here"]
    return json.loads(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--here", action="store_true", help="one process, and JSON")
    parser.add_argument("--network", action="store_true", help="preparation for 13 convolutions")
    arguments = parser.parse_args(argv)
    if arguments.network:
        confine(1)
        print(f"## Set-up of a network of 13 convolutions\n\n{machine(1)}\n", flush=True)
        show(["processor seconds", ""], [[part, f"{seconds:.2f}"] for part, seconds in of_a_network().items()])
        return
    if arguments.here:
        confine(1)
        print(json.dumps(parts()))
        return
    print(f"## Set-up of a small model\n\n{machine(1)}\n", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        found = [apart(cache) for _ in range(2)]
    rows = [[part, *(f"{seconds[part]:.2f}" for seconds in found)] for part in PARTS]
    total = [sum(seconds[part] for part in PARTS[:-1]) for seconds in found]
    show(["seconds", "first process", "second process"], [*rows, ["in all", *(f"{value:.2f}" for value in total)]])


if __name__ == "__main__":
    main()
