"""Time of value and gradient by each of `benchmarks.problems.expansions` in JAX.

python -m benchmarks.speed.expansions
python -m benchmarks.speed.expansions --shape 10 3
"""

from benchmarks.problems.expansions import by_cholesky, by_eigenvalues, by_newton_schulz, closed_form
from benchmarks.study import option, read
from benchmarks.tables import show
from benchmarks.timing import best_time

PREFACE = """\
Value and gradient of a linear density of X through Z, `jax.jit(jax.vmap(jax.value_and_grad(...)))`, in
microseconds. Polar factors are one distribution of Z, Q of Z = QR by Cholesky's factor of ZᵀZ another; NumPyro's
NUTS needs as many gradients for an effective draw by either. Newton and Schulz's iteration has not converged where Z
is nearly singular, and is here for its time only.
"""
COLUMNS = ("n", "p", "chains", "closed form", "eigenvalues", "Newton–Schulz", "Cholesky")
CASES = ((3, 2), (10, 3), (50, 5), (200, 10))


def microseconds(expansion, n, p, chains):
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    F, Z = rng.standard_normal((n, p)), rng.standard_normal((chains, n, p))
    function = jax.jit(jax.vmap(jax.value_and_grad(lambda z: (F * expansion(z, jnp)).sum())))
    return 1e6 * best_time(lambda: jax.block_until_ready(function(Z)))


def rows(cases):
    for n, p in cases:
        for chains in (1, 64):
            closed = [closed_form] if p <= 2 else []
            others = (by_eigenvalues, by_newton_schulz, by_cholesky)
            times = [f"{microseconds(expansion, n, p, chains):.0f}" for expansion in (*closed, *others)]
            yield [n, p, chains, *([] if closed else [""]), *times]


def main(argv=None):
    shape = read(__doc__, argv, shape=option(None, "n and p, in place of all", type=int, nargs=2)).shape
    print(f"## Orthonormal factors for NumPyro\n\n{PREFACE}", flush=True)
    show(COLUMNS, rows([shape] if shape else CASES))


if __name__ == "__main__":
    main()
