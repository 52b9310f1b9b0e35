"""What a draw of MSD and of HMC costs on the robot arm: operations and process time.

    python -m benchmarks.papers.msd.robot_arm_cost

Prints Markdown. Operations are those of one transition of one chain: products of matrices, as `FlopCounterMode` counts
them, a factorisation of G and what is solved with it counted by hand, and entries that elementwise operations write.
Times are the fastest of several rounds, of 1 and of 10 chains, with the steps traced or compiled; building the kernel
and compiling are left out and shown beside.
"""

from __future__ import annotations

import argparse

import pyro
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.papers.msd.robot_arm_model import SHAPES, descended, model, simulate, small_weights
from benchmarks.papers.msd.robot_arm_samplers import PERSISTENCE, STEP_SIZES, hmc
from benchmarks.tables import table
from benchmarks.timing import process_time
from pyro_manifold.infer import MSD

DIMENSION = sum(torch.Size(shape).numel() for shape in SHAPES.values())
APPROACH, ROUNDS = 5, 8


def msd(jit_compile, **options):
    return MSD(model, step_size=STEP_SIZES["MSD"], persistence=PERSISTENCE, jit_compile=jit_compile, **options)


# Kernels as functions of jit_compile, the number of steps of a draw, and draws of a round of about equal times.
KERNELS = {
    "MSD": (msd, 1, 20),
    "MSD, Jeffreys": (lambda jit_compile: msd(jit_compile, target="jeffreys"), 1, 20),
    "HMC30": (lambda jit_compile: hmc(STEP_SIZES["HMC30"], 30, jit_compile), 30, 6),
    "HMC100": (lambda jit_compile: hmc(STEP_SIZES["HMC100"], 100, jit_compile), 100, 2),
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


def ready(build, chains, jit_compile):
    """A kernel that has made a few draws, and the seconds of building it."""
    arm = simulate(0)
    pyro.set_rng_seed(0)
    kernel = build(jit_compile)
    start = descended(small_weights(chains, 0), arm)

    def set_up():
        kernel.run = kernel.prepare(chains, 0, start, arm.x_train, arm.y_train)
        for _ in range(APPROACH):
            kernel.run.advance()

    return kernel, process_time(set_up)


def factorisations(name):
    """Operations on d × d matrices that no counter sees: Cholesky d³/3, its inverse 2d³/3, four solves 2d² each.

    A velocity is drawn by another solve, d². The inverse is for the gradient of ½ log|G| alone.
    """
    if not name.startswith("MSD"):
        return 0.0
    d = DIMENSION
    inverse = 2 * d**3 / 3 if name == "MSD" else 0.0
    return d**3 / 3 + inverse + 4 * 2 * d**2 + d**2


def operations(name):
    """Millions of operations of one draw of one chain: products, factorisations, entries written."""
    kernel, _ = ready(KERNELS[name][0], 1, False)
    with FlopCounterMode(display=False) as products:
        kernel.run.advance()
    with Elementwise() as elementwise:
        kernel.run.advance()
    return [count / 1e6 for count in (products.get_total_flops(), factorisations(name), elementwise.entries)]


def milliseconds(name, chains, jit_compile):
    """Process time of a draw of all chains, fastest round; and seconds to build and compile."""
    build, _, draws = KERNELS[name]
    kernel, building = ready(build, chains, jit_compile)
    return 1e3 * min(process_time(kernel.run.advance, draws) for _ in range(ROUNDS)), building


def rows(measure):
    """A row for each sampler: figures, and those of HMC100 as multiples of its own."""
    found = {name: measure(name) for name in KERNELS}
    reference = found["HMC100"]
    for name, figures in found.items():
        yield [name, *(f"{x:.2f} ({x / y:.2f})" if y else f"{x:.3f}" for x, y in zip(figures, reference, strict=True))]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    headings = ["10⁶ operations a draw (share of HMC100)", "products", "factorisations", "entries written"]
    print(table(headings, list(rows(operations))), flush=True)
    settings = [(chains, jit_compile) for chains in (1, 10) for jit_compile in (False, True)]
    built = {}

    def times(name):
        found = {setting: milliseconds(name, *setting) for setting in settings}
        built[name] = [f"{seconds:.1f}" for _, seconds in found.values()]
        return [ms for ms, _ in found.values()]

    names = [f"{chains} chain{'s' * (chains > 1)}, {'compiled' if jit else 'default'}" for chains, jit in settings]
    print("\n" + table(["ms a draw (share of HMC100)", *names], list(rows(times))))
    print("\n" + table(["seconds to build", *names], [[name, *seconds] for name, seconds in built.items()]))


if __name__ == "__main__":
    main()
