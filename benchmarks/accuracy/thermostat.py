"""The thermostat of SGNHT beside the friction of SGHMC, on minibatches of posteriors that are known exactly.

    python -m benchmarks.accuracy.thermostat [--small]

Three posteriors of 1,000 rows, seen 50 at a time:

- a linear regression on ten standard normal columns, whose minibatches make about equal noise in all coordinates;
- the same with columns of standard deviations from 1/4 to 1, which make sixteen times as much in one as in another;
- a 4×2 orthonormal matrix X, of which each row of data is a copy with normal errors: a matrix Langevin distribution.
  Noise of one size in all entries of the gradient heats the rotation among its two columns twice as much as all else,
  by the kinetic energy of OSGHMC. "embedded" moves along geodesics of the embedded metric, where it heats all alike.

Each row of a table is a kernel at one step size, with friction 0.1, as many steps, iterations and chains, begun at the
mean or mode. "SGHMC with the estimate" is told the size of the noise, averaged over the coordinates; it refuses one
that is above its friction. The ratio is that of the standard deviation of draws to the exact one, in each coordinate
(of the matrix, of its rotation and of its columns' other parts): the mean of coordinates, the least and the largest. ξ
stands beside what it should be, α plus the estimate. CPU seconds include warm-up and compiling.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.machine import confine, machine
from benchmarks.study import read, switch
from benchmarks.tables import formatted, show
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGNHT
from pyro_manifold.infer.mcmc.mechanics import GeodesicMechanics
from pyro_manifold.manifolds import Stiefel

ROWS, BATCH, FRICTION = 1000, 50, 0.1
ORDERS = ("independent", "shuffled")
COLUMNS = ("ε", "minibatches", "kernel", "ratio", "least", "largest", "ξ", "α + β̂", "CPU s")


class EmbeddedSGNHT(SGNHT):
    """SGNHT with orthonormal matrices in the embedded metric, the drift a geodesic."""

    manifold_mechanics: ClassVar = {**SGNHT.manifold_mechanics, Stiefel: GeodesicMechanics(Stiefel())}


@dataclass(frozen=True)
class Posterior:
    """A posterior whose standard deviations are known.

    Attributes:
        title: what it is.
        model: with one site, and a plate that subsamples.
        start: ``{site: value}`` of one chain.
        noise: variance of the gradient of a minibatch, averaged over coordinates.
        step_sizes: to try.
        ratios: draws ``(draws, ...)`` to standard deviations over the exact ones, ``(coordinates,)``.
    """

    title: str
    model: Callable[[], None]
    start: dict[str, Tensor]
    noise: float
    step_sizes: tuple[float, ...]
    ratios: Callable[[Tensor], Tensor]

    def estimate(self, step_size: float) -> float:
        """The right ``noise_estimate`` of `SGHMC`."""
        return step_size**2 * self.noise / 2


def noise_of(gradients: Tensor) -> float:
    """The variance of the sum of a minibatch's gradients, ``(rows, coordinates)``, scaled to all rows."""
    return float(gradients.var(0).mean()) * ROWS**2 / BATCH * (1 - BATCH / ROWS)


def regression(title: str, scales: Tensor) -> Posterior:
    """Unit noise, a prior of standard deviation 1 on each coefficient: the posterior is normal."""
    generator = torch.Generator().manual_seed(0)
    d = len(scales)
    x = torch.randn(ROWS, d, generator=generator) * scales
    y = x @ torch.randn(d, generator=generator) + torch.randn(ROWS, generator=generator)
    covariance = torch.linalg.inv(x.mT @ x + torch.eye(d))
    mean = covariance @ x.mT @ y

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(d), 1.0).to_event(1))
        with pyro.plate("rows", ROWS, subsample_size=BATCH) as rows:
            pyro.sample("y", dist.Normal(x[rows] @ w, 1.0), obs=y[rows])

    def ratios(draws):
        return ((draws - mean).square().mean(0) / covariance.diagonal()).sqrt()

    noise = noise_of(x * (x @ mean - y).unsqueeze(1))
    return Posterior(title, model, {"w": mean}, noise, (0.002, 0.003, 0.006), ratios)


def matrix(title: str, exact_draws: int) -> Posterior:
    """Rows Yᵢ = X + 5 Zᵢ, Z standard normal: matrix Langevin with F = ΣYᵢ/25."""
    generator = torch.Generator().manual_seed(0)
    y = torch.eye(4, 2) + 5 * torch.randn(ROWS, 4, 2, generator=generator)
    F = y.sum(0) / 25
    left, _, right = torch.linalg.svd(F)
    mode = left[:, :2] @ right

    def model():
        X = pyro.sample("X", StiefelUniform(4, 2))
        with pyro.plate("rows", ROWS, subsample_size=BATCH) as rows:
            pyro.sample("y", dist.Normal(X, 5.0).to_event(2), obs=y[rows])

    def around_the_mode(draws):
        """The rotation among the columns, and the parts of both columns along the other two directions."""
        inner = mode.mT @ draws
        return torch.cat([(inner[:, 1:, 0] - inner[:, :1, 1]) / 2, (left[:, 2:].mT @ draws).flatten(1)], 1)

    pyro.set_rng_seed(0)
    exact = around_the_mode(MatrixLangevin(F).sample((exact_draws,))).square().mean(0).sqrt()

    def ratios(draws):
        return around_the_mode(draws).square().mean(0).sqrt() / exact

    return Posterior(title, model, {"X": mode}, noise_of(y.flatten(1) / 25), (0.01, 0.02, 0.03), ratios)


def kernels(posterior: Posterior, step_size: float, order: str):
    """Name and a function that makes the kernel, or what is said in place of its figures."""
    estimate, independent = posterior.estimate(step_size), order == "independent"
    known = partial(OSGHMC, friction=FRICTION, noise_estimate=estimate)
    yield "SGHMC", partial(OSGHMC, friction=FRICTION)
    if independent:
        yield "SGHMC with the estimate", known if estimate < FRICTION else "refused: above the friction"
    yield "SGNHT", partial(SGNHT, friction=FRICTION)
    if independent:
        yield "SGNHT, Q = 1", partial(SGNHT, friction=FRICTION, thermostat_mass=1.0)
    if independent and "X" in posterior.start:
        yield "SGNHT, embedded", partial(EmbeddedSGNHT, friction=FRICTION)


def rows_of(posterior: Posterior, *, chains: int, num_steps: int, warmup_steps: int, draws: int, step_sizes: int):
    """Rows of the table of a posterior."""
    start = {name: value.expand(chains, *value.shape) for name, value in posterior.start.items()}
    for step_size in posterior.step_sizes[:step_sizes]:
        for order in ORDERS:
            for name, make in kernels(posterior, step_size, order):
                if isinstance(make, str):
                    yield step_size, order, name, make
                    continue
                pyro.set_rng_seed(0)
                begun = time.process_time()
                kernel = make(model=posterior.model, step_size=step_size, num_steps=num_steps, minibatches=order)
                mcmc = MCMC(kernel, draws, warmup_steps, num_chains=chains, initial_params=start, disable_progbar=True)
                mcmc.run()
                seconds = time.process_time() - begun
                ratios = posterior.ratios(next(iter(mcmc.get_samples().values())))
                found = mcmc.get_extra_fields().get("thermostat")
                cells = formatted(".3f .3f .3f", float(ratios.mean()), float(ratios.min()), float(ratios.max()))
                heat = "" if found is None else f"{float(found.mean()):.3f}"
                expected = f"{FRICTION + posterior.estimate(step_size):.3f}"
                yield step_size, order, name, *cells, heat, expected, f"{seconds:.1f}"


def main(argv=None):
    arguments = read(__doc__, argv, small=switch("one step size and few draws, to see that it runs"))
    warnings.filterwarnings("ignore", message="The momenta of ")  # it is what the tables are about
    sizes = {"chains": 16, "num_steps": 20, "warmup_steps": 500, "draws": 3000, "step_sizes": 3}
    if arguments.small:
        sizes = {"chains": 4, "num_steps": 5, "warmup_steps": 5, "draws": 20, "step_sizes": 1}
    else:
        confine(1)
        print(f"{machine(1)}\n")
    print(", ".join(f"{name} {size:,}" for name, size in sizes.items() if name != "step_sizes"))
    for posterior in (
        regression("Regression, equal noise", torch.ones(10)),
        regression("Regression, unequal noise", torch.linspace(0.25, 1.0, 10)),
        matrix("Orthonormal matrix", 2_000 if arguments.small else 200_000),
    ):
        print(f"\n### {posterior.title}\n")
        show(COLUMNS, rows_of(posterior, **sizes))


if __name__ == "__main__":
    main()
