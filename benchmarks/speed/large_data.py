"""Time of one value-and-gradient where data are large: principal components of a 5,000 × 784 matrix, scores sampled.

python -m benchmarks.speed.large_data [CHAINS ...] [--shape 5000 784]

Both in float64 on one core. NumPyro has the orthonormal matrix as a factor of a normal one (QR), the cheapest of its
expansions. An array of the size of the data has 31 MB.
"""

import argparse
import warnings

import numpy as np

from benchmarks.machine import confine, machine
from benchmarks.speed.gradients import numpyro_time, pyro_manifold_times
from benchmarks.tables import show

ROWS, COLUMNS, RANK = 5000, 784, 10


class Components:
    """The model in both libraries, and its data."""

    def __init__(self, rows=ROWS, columns=COLUMNS, rank=RANK):
        random = np.random.default_rng(0)
        axes = np.linalg.qr(random.standard_normal((columns, rank)))[0]
        scores = random.standard_normal((rows, rank)) * np.linspace(5, 1, rank)
        self.data, self.rank = scores @ axes.T + random.standard_normal((rows, columns)), rank

    def pyro_model(self):
        import pyro
        import pyro.distributions as dist
        import torch

        from pyro_manifold.distributions import StiefelUniform

        (rows, columns), rank = self.data.shape, self.rank
        axes = pyro.sample("axes", StiefelUniform(columns, rank))
        scales = pyro.sample("scales", dist.HalfNormal(10.0).expand([rank]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(5.0))
        scores = pyro.sample("scores", dist.Normal(0.0, 1.0).expand([rows, rank]).to_event(2))
        with pyro.plate("rows", rows):
            mean = (scores * scales) @ axes.T
            pyro.sample("data", dist.Normal(mean, noise).to_event(1), obs=torch.as_tensor(self.data))

    def numpyro_model(self):
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        (rows, columns), rank = self.data.shape, self.rank
        normal = numpyro.sample("normal", dist.Normal(0.0, 1.0).expand([columns, rank]).to_event(2))
        axes = jnp.linalg.qr(normal)[0]
        scales = numpyro.sample("scales", dist.HalfNormal(10.0).expand([rank]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(5.0))
        scores = numpyro.sample("scores", dist.Normal(0.0, 1.0).expand([rows, rank]).to_event(2))
        with numpyro.plate("rows", rows):
            mean = (scores * scales) @ axes.T
            numpyro.sample("data", dist.Normal(mean, noise).to_event(1), obs=jnp.asarray(self.data))


def rows(problem, counts):
    first = None
    for chains in counts:
        traced, compiled = pyro_manifold_times(problem, chains)
        numpyro = numpyro_time(problem, chains)
        first = first or traced
        milliseconds = [f"{1e3 * time:.0f}" for time in (traced, compiled, numpyro)]
        yield [chains, *milliseconds, f"{traced / numpyro:.2f}", f"{traced / first:.2f}"]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chains", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--shape", type=int, nargs=2, default=[ROWS, COLUMNS], help="rows and columns of the data")
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    confine(1)
    print(f"## Value and gradient of large data\n\n{machine(1)}\n", flush=True)
    columns = ("chains", "ours, traced ms", "ours, compiled ms", "NumPyro ms", "traced / NumPyro", "by the first row")
    show(columns, rows(Components(*arguments.shape), arguments.chains))


if __name__ == "__main__":
    main()
