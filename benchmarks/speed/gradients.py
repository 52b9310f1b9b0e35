"""Time of one value-and-gradient of the network eigenmodel, ours and NumPyro's, over the same density.

python -m benchmarks.speed.gradients [CHAINS ...] [--problem "network 270×3"]
"""

import argparse
import os
import warnings

import pyro
import torch

from benchmarks.problems.network import MISSING, NETWORK
from benchmarks.problems.page import PROBLEMS
from benchmarks.tables import formatted, show
from benchmarks.timing import best_time
from pyro_manifold.compiled import trace
from pyro_manifold.compiled.native import compile_loop
from pyro_manifold.infer import OHMC

PREFACE = """\
Ours is the traced density of the network, vectorised over chains, without and with `torch.compile`, and the native
code of it that a kernel has in its steps. NumPyro's is `jax.jit(jax.vmap(jax.value_and_grad(...)))` of its own
potential, over its fastest expansion.
"""


def densities(problem, chains):
    """Energy and gradients of all chains, of one chain, and where the chains are."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    pyro.set_rng_seed(0)
    problem = OHMC(problem.pyro_model).prepare(chains, 1, None).problem
    return (
        problem.batched.graph,
        problem.batched.first.of_one_chain,
        [x.clone() for x in problem.initial_values.values()],
    )


def pyro_manifold_times(problem, chains):
    """Traced, and by `torch.compile`."""
    flat, _, values = densities(problem, chains)
    with pyro.validation_enabled(False):
        compiled = torch.compile(trace(lambda *values: flat(*values), *values), dynamic=False)
        return best_time(lambda: flat(*values), 3.0), best_time(lambda: compiled(*values), 3.0)


def native_time(problem, chains):
    """Time of value and gradient in C, as a loop of one step."""
    _, of_one_chain, values = densities(problem, chains)
    function = native_gradient(of_one_chain, values)
    return best_time(lambda: function(*values), 3.0)


def native_gradient(of_one_chain, values):
    """Energy and gradients of many chains in C, from energy and gradients of one."""

    def gradient(*inputs):
        return [value.unsqueeze(0) for value in of_one_chain(*[value[0] for value in inputs[: len(values)]])]

    def begin(*inputs):
        return [torch.zeros_like(value) for value in gradient(*inputs)]

    def end(*inputs):
        return list(inputs[len(values) :])

    loop = compile_loop(begin, gradient, end, len(values) + 1, values, len(values[0]))
    return lambda *inputs: loop(1, *inputs)


def numpyro_time(problem, chains):
    import jax
    from numpyro.infer.util import initialize_model

    jax.config.update("jax_enable_x64", True)
    keys = jax.random.split(jax.random.PRNGKey(0), chains)
    info = initialize_model(keys, problem.numpyro_model)
    function = jax.jit(jax.vmap(jax.value_and_grad(info.potential_fn)))
    start = info.param_info.z
    return best_time(lambda: jax.block_until_ready(function(start)), 3.0)


def rows(problem, counts):
    for chains in counts:
        traced, compiled = pyro_manifold_times(problem, chains)
        native, numpyro = native_time(problem, chains), numpyro_time(problem, chains)
        microseconds = [1e6 * seconds for seconds in (traced, compiled, native, numpyro)]
        yield [chains, *formatted(".0f .0f .0f .0f .2f .2f", *microseconds, compiled / numpyro, native / numpyro)]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chains", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--problem", default=NETWORK, choices=[NETWORK, *PROBLEMS])
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    problem = PROBLEMS.get(arguments.problem)
    print(f"## Value and gradient of the {arguments.problem.removesuffix(' 270×3')}\n\n{PREFACE}", flush=True)
    if problem is None:
        print(f"{MISSING}.")
        return
    columns = ("chains", "ours, traced µs", "compiled", "native", "NumPyro", "compiled / NumPyro", "native / NumPyro")
    show(columns, rows(problem, arguments.chains))


if __name__ == "__main__":
    main()
