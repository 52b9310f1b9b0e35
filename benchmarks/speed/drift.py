"""A drift of orthonormal matrices beside the operations of its exact forms, at the rate of matrix products.

    python -m benchmarks.speed.drift
    python -m benchmarks.speed.drift --geodesics    Cayley rotations beside geodesics in place of that

The Cayley rotation Q = (I - W t/2)⁻¹ (I + W t/2) of X and r, with W = rXᵀ - Xrᵀ, one matrix, one thread. Operations
(additions and multiplications; a factorisation of m×m has 2/3 m³, a solution with k columns 2 m² k) of

- a 2p×2p system, by Woodbury's identity as in the OHMC paper: 12np² + 21⅓ p³;
- the n×n system of the definition, with the step that keeps X orthonormal: 10n²p + 8np² + ⅔ n³;
- a p×p inverse, see `cayley_flow`: 12np² + 4⅔ p³, and 10⅔ p³ if n = p. For n < 2p it multiplies rounding errors of
  long steps, and is left out.

`cayley_flow` takes the least of those that are left. "At the rate of products" is the time of its operations at the
rate of a product of 1024×1024 matrices, measured in the same run. The last columns explain the ratio: what the solution
of a system with as many columns as rows takes, of the size that the form has, and its rate; and four products of such
matrices, with which (I + N) (I + N²) (I + N⁴) is (I - N)⁻¹ up to ‖N‖⁸, which is rounding in float32 if ‖N‖ ≤ 0.1. Times
are the fastest of several calls, in processor time.

With ``--geodesics`` a row has one drift by torch, and one whole step in native code of one chain, on a matrix Langevin
distribution (`benchmarks.speed.tall`), by the rotation of OHMC and by the geodesic of GHMC. The two take turns; times
are the median of the fastest of each turn.
"""

import os
import time
import warnings
from statistics import median

import torch

from benchmarks.speed.tall import langevin, seconds_of_a_step
from benchmarks.study import read, switch
from benchmarks.tables import formatted, show
from benchmarks.timing import best_time
from pyro_manifold.infer import GHMC, OHMC
from pyro_manifold.manifolds import Stiefel, cayley_flow, cayley_flow_by_rows, geodesic_flow

SHAPES = ((784, 300), (300, 300), (400, 300), (784, 40), (1000, 10))
SIZE, TIME, SECONDS = 1024, 1e-2, 1.0
COMPARED, TURNS = ((3, 2), (10, 10), (1000, 10), (50, 50), (1000, 50)), 3
HEADINGS_OF_GEODESICS = (
    *("matrix", "cayley_flow, ms", "geodesic_flow, ms", "ratio"),
    *("step of OHMC, native, ms", "step of GHMC, native, ms", "ratio"),
)
HEADINGS = (
    *("matrix", "2p×2p, Mflop", "n×n, Mflop", "p×p, Mflop", "2p×2p, ms", "n×n, ms", "cayley_flow, ms"),
    *("at the rate of products, ms", "ratio", "its solution, ms", "Gflop/s", "four products, ms"),
)


def operations(n, p):
    """``{form: (size of its system, operations)}`` of each form that is accurate for long steps."""
    found = {"2p×2p": (2 * p, 12 * n * p**2 + 64 * p**3 / 3), "n×n": (n, 10 * n**2 * p + 8 * n * p**2 + 2 * n**3 / 3)}
    if n == p:
        found["p×p"] = p, 32 * p**3 / 3
    elif n > 2 * p:
        found["p×p"] = p, 12 * n * p**2 + 14 * p**3 / 3
    return found


def by_woodbury(X, r, t):
    """Rotate both matrices by a system of 2p×2p."""
    p, half = X.shape[-1], t / 2
    C, square = X.mT @ r, r.mT @ r
    identity = torch.eye(p, dtype=X.dtype, device=X.device).expand_as(C)
    both = torch.cat([r, X], -1)
    # W = [r, X] [X, -r]ᵀ, whose right factor times X and r is this.
    times = torch.cat([torch.cat([identity, C], -1), torch.cat([-C.mT, -square], -1)], -2)
    inner = torch.cat([torch.cat([C, identity], -1), torch.cat([-square, -C.mT], -1)], -2)
    system = torch.eye(2 * p, dtype=X.dtype, device=X.device) - half * inner
    change = both @ (t * torch.linalg.solve_ex(system, times)[0])
    return X + change[..., :p], r + change[..., p:]


def point_and_tangent(n, p):
    X = Stiefel().random_point(n, p)
    return X, Stiefel().tangent_projection(X, torch.randn(n, p))


def milliseconds(function, *arguments, seconds):
    return 1e3 * best_time(lambda: function(*arguments), seconds, time.process_time)


def rate_of_products(seconds):
    """Return Gflop a second of a product of large square matrices."""
    A, B = torch.randn(2, SIZE, SIZE)
    return 2e-6 * SIZE**3 / milliseconds(torch.matmul, A, B, seconds=seconds)


def solution_and_products(m, seconds):
    """Return milliseconds of a factorisation and solution with m columns, and of four products, of m×m matrices."""
    A, B = torch.randn(2, m, m)
    solution = milliseconds(torch.linalg.solve, A + m * torch.eye(m), B, seconds=seconds)
    return solution, 4 * milliseconds(torch.matmul, A, B, seconds=seconds)


def rows(shapes, seconds):
    """A row of `HEADINGS` for each shape."""
    rate = rate_of_products(seconds)
    for n, p in shapes:
        forms, moving = operations(n, p), (*point_and_tangent(n, p), TIME)
        size, least = min(forms.values(), key=lambda form: form[1])
        counts = [f"{1e-6 * forms[form][1]:.1f}" if form in forms else "–" for form in ("2p×2p", "n×n", "p×p")]
        compared = (by_woodbury, cayley_flow_by_rows, cayley_flow)
        times, ideal = [milliseconds(form, *moving, seconds=seconds) for form in compared], 1e-6 * least / rate
        solution, products = solution_and_products(size, seconds)
        figures = *times, ideal, times[-1] / ideal, solution, 1e-6 * (8 * size**3 / 3) / solution, products
        yield [f"V({n},{p})", *counts, *formatted(".3f .3f .3f .3f .2f .3f .0f .3f", *figures)]


def rows_of_geodesics(shapes, seconds):
    """A row of `HEADINGS_OF_GEODESICS` for each shape."""
    for n, p in shapes:
        moving, problem = (*point_and_tangent(n, p), TIME), langevin(n, p)
        drifts = [
            [milliseconds(f, *moving, seconds=seconds) for f in (cayley_flow, geodesic_flow)] for _ in range(TURNS)
        ]
        native = {"chains": 1, "native": True, "seconds": seconds}
        steps = [[1e3 * seconds_of_a_step(problem, kernel=k, **native) for k in (OHMC, GHMC)] for _ in range(TURNS)]
        (cayley, geodesic), (ohmc, ghmc) = (map(median, zip(*times, strict=True)) for times in (drifts, steps))
        cells = formatted(".4f .4f .1f .4f .4f .1f", cayley, geodesic, geodesic / cayley, ohmc, ghmc, ghmc / ohmc)
        yield [f"V({n},{p})", *("–" if cell == "nan" else cell for cell in cells)]


def main(argv=None):
    arguments = read(
        __doc__, argv, short=switch("small matrices, to see that it runs"), geodesics=switch("beside rotations")
    )  # fmt: skip
    seconds, shapes = (0.01, ((20, 5), (8, 6), (6, 6))) if arguments.short else (SECONDS, SHAPES)
    if arguments.geodesics:
        warnings.filterwarnings("ignore")
        os.environ["PYRO_MANIFOLD_NATIVE"] = "1"
        show(HEADINGS_OF_GEODESICS, rows_of_geodesics(shapes if arguments.short else COMPARED, seconds / TURNS))
        return
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        torch.manual_seed(0)
        print(f"\n**{str(dtype).removeprefix('torch.')}**, products at {rate_of_products(seconds):.0f} Gflop/s:\n")
        show(HEADINGS, list(rows(shapes, seconds)))


if __name__ == "__main__":
    main()
