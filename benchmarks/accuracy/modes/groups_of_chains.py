"""Rates at which chains of one mode are told apart, and chains of two modes are not.

    python -m benchmarks.accuracy.modes.groups_of_chains

Chains are autoregressive, Gaussian or log-normal, worth so many independent draws each; two modes are two equal
Gaussians in one of ten entries, so many standard deviations apart, with half of the chains in each.
"""

import torch
from torch import Tensor

from benchmarks.study import read
from pyro_manifold.diagnostics import modes

DRAWS, ENTRIES = 200, 10


def chains_of_one_mode(chains: int, effective: int, draws: int = DRAWS, entries: int = ENTRIES) -> Tensor:
    """``(chains, draws, entries)``: Gaussian and autoregressive, so many independent draws' worth in each chain."""
    length = draws / effective
    kept = (length - 1) / (length + 1)
    x, found = torch.randn(chains, entries), []
    for _ in range(draws):
        found.append(x)
        x = kept * x + (1 - kept**2) ** 0.5 * torch.randn(chains, entries)
    return torch.stack(found, 1)


def main() -> None:
    count = read(__doc__, dtype=torch.float32, sets=200).sets
    torch.manual_seed(0)
    print(f"Of {count} sets of chains of one mode, told apart:")
    for effective in (3, 5, 10, 100):
        split = {}
        for chains in (2, 4, 16):
            sets = [chains_of_one_mode(chains, effective) for _ in range(count)]
            split[chains] = [sum(len(modes({"x": f(x)})) > 1 for x in sets) for f in (torch.clone, torch.exp)]
        print(f"{effective} effective draws each:", ", ".join(f"{c} chains {a} and {b}" for c, (a, b) in split.items()))
    print(f"Of {count} sets of 4 chains in two modes, grouped rightly:")
    for effective in (5, 10, 30, 100):
        right = {}
        for distance in (2, 3, 4, 6, 8, 10):
            right[distance] = 0
            for _ in range(count):
                x = chains_of_one_mode(4, effective)
                x[2:, :, 0] += distance
                right[distance] += sorted(modes({"x": x}).chains) == [[0, 1], [2, 3]]
        print(f"{effective} effective draws each:", ", ".join(f"{d} apart {k}" for d, k in right.items()))


if __name__ == "__main__":
    main()
