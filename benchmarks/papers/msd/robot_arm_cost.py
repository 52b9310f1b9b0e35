"""Cost of a draw of MSD and of HMC on the robot arm: operations and process time.

    python -m benchmarks.papers.msd.robot_arm_cost

Prints Markdown. Operations are those of one transition of one chain: products of matrices, as `FlopCounterMode` counts
them, a factorisation of G and what is solved with it counted by hand, and entries that elementwise operations write.
Times are the fastest of several rounds, of 1 and of 10 chains, with native code and without it; building the kernel
and compiling are left out.
"""

import pyro
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.papers.msd.robot_arm_model import SHAPES, descended, model, simulate, small_weights
from benchmarks.papers.msd.robot_arm_samplers import PERSISTENCE, STEP_SIZES, hmc
from benchmarks.speed.native_kernels import microseconds
from benchmarks.study import read
from benchmarks.tables import table
from benchmarks.timing import process_time
from pyro_manifold.infer import MSD

DIMENSION = sum(torch.Size(shape).numel() for shape in SHAPES.values())
NATIVE, ROUNDS = (1000, 500, 2.0), 8
"""Draws before the clock starts, draws of a round and seconds of all rounds; rounds of one draw without native code."""


def msd(**options):
    return MSD(model, step_size=STEP_SIZES["MSD"], persistence=PERSISTENCE, **options)


KERNELS = {
    "MSD": msd,
    "MSD, Jeffreys": lambda: msd(target="jeffreys"),
    "HMC30": lambda: hmc(STEP_SIZES["HMC30"], 30),
    "HMC100": lambda: hmc(STEP_SIZES["HMC100"], 100),
}


class Elementwise(TorchDispatchMode):
    """Counts the entries that operations write, but for products of matrices, factorisations and views."""

    OTHERS = ("mm", "bmm", "addmm", "baddbmm", "linalg", "cholesky", "triangular", "empty", "zeros", "ones")

    def __init__(self):
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if torch.is_tensor(result) and not function.is_view and not any(part in name for part in self.OTHERS):
            self.entries += result.numel()
        return result


def start(chains):
    """Data, and initial values on the way to a mode."""
    arm = simulate(0)
    return arm, descended(small_weights(chains, 0), arm)


def factorisations(name):
    """Operations on d × d matrices that no counter sees: Cholesky d³/3, its inverse 2d³/3, four solves 2d² each.

    A velocity is drawn by another solve, d². The inverse is for the gradient of ½ log|G| alone.
    """
    if not name.startswith("MSD"):
        return 0.0
    d = DIMENSION
    inverse = 2 * d**3 / 3 if name == "MSD" else 0.0
    return d**3 / 3 + inverse + 4 * 2 * d**2 + d**2


def traced(name, chains):
    """A run without native code, after a few draws."""
    arm, weights = start(chains)
    pyro.set_rng_seed(0)
    run = KERNELS[name]().prepare(chains, 0, weights, arm.x_train, arm.y_train)
    for _ in range(3):
        run.advance()
    return run


def operations(name):
    """Millions of operations of one draw of one chain: products, factorisations, entries written."""
    run = traced(name, 1)
    with FlopCounterMode(display=False) as products:
        run.advance()
    with Elementwise() as elementwise:
        run.advance()
    return [count / 1e6 for count in (products.get_total_flops(), factorisations(name), elementwise.entries)]


def milliseconds(name, chains, native):
    """Process time of a draw of all chains, fastest round."""
    if not native:
        advance = traced(name, chains).advance
        return 1e3 * min(process_time(advance) for _ in range(ROUNDS))
    arm, weights = start(chains)
    weights = weights if chains > 1 else {site: value[0] for site, value in weights.items()}
    return microseconds(KERNELS[name], True, *NATIVE, chains=chains, start=weights, data=arm[:2]) / 1e3


def rows(measure):
    """A row for each sampler: figures, and those of HMC100 as multiples of its own."""
    found = {name: measure(name) for name in KERNELS}
    reference = found["HMC100"]
    for name, figures in found.items():
        yield [name, *(f"{x:.2f} ({x / y:.2f})" if y else f"{x:.3f}" for x, y in zip(figures, reference, strict=True))]


def main(argv=None):
    read(__doc__, argv)
    headings = ["10⁶ operations a draw (share of HMC100)", "products", "factorisations", "entries written"]
    print(table(headings, list(rows(operations))), flush=True)
    settings = [(chains, native) for chains in (1, 10) for native in (True, False)]
    names = [f"{chains} chain{'s' * (chains > 1)}, {'native' if native else 'traced'}" for chains, native in settings]
    times = rows(lambda name: [milliseconds(name, *setting) for setting in settings])
    print("\n" + table(["ms a draw (share of HMC100)", *names], list(times)))


if __name__ == "__main__":
    main()
