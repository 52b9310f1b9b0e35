"""Step size and number of steps for the exact MSD of `benchmarks.geometry.collinear`.

    python -m benchmarks.geometry.pilot "collinear logistic"

64 chains of 100 draws with each pair; what counts is the smallest effective number of draws for each step.
"""

from __future__ import annotations

import sys

from benchmarks.geometry.peers import measure
from benchmarks.measure import summary

CHAINS, WARMUP, DRAWS = 64, 40, 100
GRID = [(0.4, 4), (0.5, 3), (0.6, 3), (0.7, 2), (0.8, 2), (1.0, 2), (1.0, 1)]


def main(name, grid=GRID, chains=CHAINS, draws=DRAWS, warmup=WARMUP):
    print("| ε | steps | acceptance | ESS a draw | ESS a step |\n|---|---|---|---|---|")
    for step_size, num_steps in grid:
        options = {"step_size": step_size, "num_steps": num_steps, "persistence": 0.0, "metropolis": True}
        w, figures = measure(name, "MSD", chains, warmup, draws, options)
        smallest = summary({str(i): w[..., i] for i in range(w.shape[-1])})["ess_min"] / (chains * draws)
        cells = [step_size, num_steps, *(f"{x:.2f}" for x in (figures["acceptance"], smallest, smallest / num_steps))]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
