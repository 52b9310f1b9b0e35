"""The evidence of each rank of Bayesian PCA: the wines of scikit-learn, and curves in the shape of daily temperatures.

`python -m benchmarks.accuracy.ranks_of_real_data --data wine --picture F`

The curves are simulated (365 days of 35 stations, two components: the size of the winter and the mean of a station),
so that their rank is known. Rows are centred, and the measurements of the wines standardised. Loadings are independent
N(0, s²), s = 0.5 and 5, the noise HalfNormal(1).
"""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.accuracy.ranks import log_density
from benchmarks.problems.components import weather
from benchmarks.study import option, read
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import OHMC, SMC, compare_evidence


def wine() -> Tensor:
    from sklearn.datasets import load_wine

    y = torch.as_tensor(load_wine().data)
    return (y - y.mean(0)) / y.std(0)


DATA = {"wine": (wine, 0.5, range(1, 9)), "curves": (weather, 5.0, range(1, 5))}


def components(y: Tensor, rank: int, scale: float) -> None:
    """Probabilistic PCA whose scores are integrated out."""
    rows, columns = y.shape
    noise = pyro.sample("noise", dist.HalfNormal(torch.ones(())))
    U = pyro.sample("U", StiefelUniform(columns, rank))
    variances = pyro.sample("scales", NormalSingularValues(columns, rank, torch.tensor(scale))).square()
    explained = (y @ U).square().sum(0)
    pyro.factor("rows", log_density(rows, columns, y.square().sum(), explained, variances, noise))


def main(argv: list[str] | None = None) -> None:
    arguments = read(
        __doc__, argv, data=option(None, choices=DATA, required=True), particles=512, runs=4,
        picture=option(None, "file for the picture", type=Path),
    )  # fmt: skip
    pyro.set_rng_seed(0)
    load, scale, ranks = DATA[arguments.data]

    def smc(model: object) -> SMC:
        return SMC(OHMC(model), arguments.particles, arguments.runs, disable_progbar=True)

    y, start = load(), time.process_time()
    table = compare_evidence(partial(components, scale=scale), y, over={"rank": ranks}, smc=smc)
    print(table.round(2).to_string(), f"\n{time.process_time() - start:.0f} CPU s")
    from sklearn.decomposition import PCA

    if len(y) > y.shape[1]:
        print("Minka's Laplace approximation:", PCA(n_components="mle").fit(np.asarray(y)).n_components_)
    if arguments.picture:
        from examples import gallery

        gallery.figure_of_evidence(table).savefig(arguments.picture, dpi=150)


if __name__ == "__main__":
    main()
