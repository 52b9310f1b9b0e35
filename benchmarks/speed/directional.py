"""Time of von Mises–Fisher log densities and their gradients, beside SciPy's density, on one core.

    python -m benchmarks.speed.directional [--short]

10,000 unit vectors in 10 groups with a mean direction and a concentration each; SciPy has no batches, so its function
is called once for each group, without a gradient. ``--short`` has 100 vectors.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import scipy.stats
import torch

from benchmarks.tables import show
from benchmarks.timing import best_time
from pyro_manifold.distributions import Bingham, MatrixFisher, VonMisesFisher

GROUPS = 10


def von_mises_fisher(n, count):
    mean = VonMisesFisher(torch.eye(n)[0], 0.0).sample((GROUPS,))
    kappa, group = torch.linspace(1.0, 50.0, GROUPS), torch.arange(count) % GROUPS
    x = VonMisesFisher(mean[group], kappa[group]).sample()

    def gradient():
        leaves = mean.clone().requires_grad_(), kappa.clone().requires_grad_()
        law = VonMisesFisher(leaves[0][group], leaves[1][group], validate_args=False)
        torch.autograd.grad(law.log_prob(x).sum(), leaves)

    def scipys():
        for k in range(GROUPS):
            scipy.stats.vonmises_fisher(mean[k].numpy(), float(kappa[k])).logpdf(x[group == k].numpy())

    law = VonMisesFisher(mean[group], kappa[group], validate_args=False)
    return best_time(lambda: law.log_prob(x)), best_time(gradient), best_time(scipys)


def matrix_gradient(kind, size, count):
    group = torch.arange(count) % GROUPS
    parameter = torch.randn(GROUPS, size, size)
    x = kind(parameter[group]).sample()

    def gradient():
        leaf = parameter.clone().requires_grad_()
        torch.autograd.grad(kind(leaf[group], validate_args=False).log_prob(x).sum(), leaf)

    return best_time(gradient)


def rows(count):
    for n in (3, 100):
        value, gradient, scipys = von_mises_fisher(n, count)
        yield f"von Mises–Fisher, n = {n}", *(f"{1e3 * each:.2f} ms" for each in (value, gradient, scipys))
    for kind, size in ((Bingham, 3), (MatrixFisher, 3)):
        yield kind.__name__, "", f"{1e3 * matrix_gradient(kind, size, count):.2f} ms"


def main(short=False):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    show(("distribution", "log density", "and gradient", "SciPy's log density"), rows(100 if short else 10_000))


if __name__ == "__main__":
    main("--short" in sys.argv[1:])
