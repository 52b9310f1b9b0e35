"""Tall matrices, whose rows are in the lanes of vectors: agreement with torch, and which models are written so."""

import pytest
import torch

from pyro_manifold.compiled.native import Loop, NativeLoop, compile_loop, reusing
from tests.compiled.native.loops import graph_of, loop_of
from tests.infer.mcmc.compilers import native_code

pytestmark = native_code

N, P, CHAINS = 197, 4, 3  # the last vector is not full, whatever its width
GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(N, 6, generator=GENERATOR, dtype=torch.float64)
WEIGHTS = torch.rand(N, 1, generator=GENERATOR, dtype=torch.float64) + 0.5
SMALL = torch.randn(P, 5, generator=GENERATOR, dtype=torch.float64)

FUNCTIONS = {
    "sums of functions that are not 0 at 0": lambda x, y: [x.exp().sum((1, 2)), (x + 1).cos().mean((1, 2))],
    "sums that keep columns": lambda x, y: [x.cosh().sum(1), x.exp().sum(-2, keepdim=True).log()],
    "sums of columns": lambda x, y: [(x * y).sum(-1), (x * x).sum(-1, keepdim=True) + x],
    "sums after a reshape": lambda x, y: [x.square().flatten(1).sum(1), (x * y).flatten(1).sum(1)],
    "products over rows": lambda x, y: [x.mT @ y, (x + 2).mT @ (y.exp()), x.mT @ x],
    "products row by row": lambda x, y: [x @ SMALL.to(x), x @ (x.mT @ y), ((x.mT @ y) @ y.mT).mT],
    "products with data": lambda x, y: [DATA.to(x).mT @ x, y.mT @ DATA.to(x)],
    "constants broadcast with rows": lambda x, y: [x * WEIGHTS.to(x), DATA.to(x)[:, :4] - y / WEIGHTS.to(x)],
    "parts and joins of columns": lambda x, y: [torch.cat([y, -x], -1)[..., 2:6], x[..., 1:2] * y, x[..., 2] + 1],
    "conditions": lambda x, y: [torch.where(x > 0, x, y.abs()), torch.where(x.sum((1, 2), True) > 0, x, y)],
    "filled": lambda x, y: [torch.ones_like(x).mT @ torch.ones_like(y), torch.full_like(x, 2.0) + y],
    "transposed": lambda x, y: [(x.mT + y.mT).mT, (x.mT * 2).mT],
    "a system of equations": lambda x, y: [x @ torch.linalg.solve_ex(_with_zero_pivot(x), x.mT @ y)[0]],
    "invalid numbers": lambda x, y: [x.log().sum((1, 2)), (x / 0).mT @ y],
}


def _with_zero_pivot(x):
    A = x.mT @ x
    return A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1) * torch.tensor([1.0, 0, 0, 0]).to(x))


def inputs(dtype, chains=CHAINS, n=N):
    random = torch.Generator().manual_seed(1)
    return [torch.randn(chains, n, P, generator=random, dtype=torch.float64).to(dtype) for _ in range(2)]


def loop_that_begins(function, *values):
    """A loop that does all of its work before its first step."""
    count = len(values)
    return compile_loop(
        lambda *given: [given[0][..., :1].clone(), *[result.clone() for result in function(*given)]],
        lambda *given: [given[count] + 1],
        lambda *given: [value.clone() for value in given[count:-1]],
        1,
        values,
        len(values[0]),
    )


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.long)], ids=str)
def test_values_are_those_of_torch(dtype):
    """All functions in one program, which has rows in lanes only if each of them can be written so."""
    values = inputs(dtype)
    loop = loop_that_begins(lambda *given: [x for function in FUNCTIONS.values() for x in function(*given)], *values)
    assert loop.source.by_rows
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-3}
    of_all = iter(loop(1, *values))
    for name, function in FUNCTIONS.items():
        for expected in function(*values):
            message = lambda text, name=name: f"{name}: {text}"  # noqa: E731
            torch.testing.assert_close(next(of_all), expected, **tolerance, equal_nan=True, msg=message)


@pytest.mark.parametrize("n", [192, 197, 1000])
def test_states_are_exchanged_from_step_to_step(n):
    x, y = inputs(torch.float64, n=n)
    x, y = x / n**0.5, y / n**0.5

    def step(x0, y0, x, y, s):
        return [y + x @ (x.mT @ y), x, s + (x * y0).sum((1, 2))]

    loop = compile_loop(
        lambda x, y: [x.clone(), y.clone(), x.sum((1, 2))],
        step,
        lambda x0, y0, x, y, s: [x.clone(), y.clone(), s.clone()],
        3,
        [x, y],
        CHAINS,
    )
    assert loop.source.by_rows
    expected = [x, y, x.sum((1, 2))]
    for steps in range(1, 6):
        expected = step(x, y, *expected)
        for found, value in zip(loop(steps, x, y), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-10)


def test_operators_across_rows_have_chains_in_lanes():
    values = inputs(torch.float64)
    for function in (lambda x, y: [x.flip(1)], lambda x, y: [x[:, :10]], lambda x, y: [torch.cat([x, y], 1)]):
        loop = loop_that_begins(function, *values)
        assert not loop.source.by_rows
        assert torch.equal(loop(1, *values)[0], function(*values)[0])  # numbers are moved alone


def test_small_matrices_have_chains_in_lanes():
    x = torch.randn(8, 20, 3, dtype=torch.float64)
    assert not loop_that_begins(lambda x: [x.mT @ x], x).source.by_rows
    one_chain = NativeLoop(loop_of(lambda x: [x.mT @ x], x), [x], 1)
    assert not one_chain.source.by_rows


def products(module):
    return sum(getattr(node.target, "__name__", "").startswith("bmm") for node in module.graph.nodes)


@pytest.mark.parametrize("n", [20, 300])
def test_products_of_the_end_of_a_step_are_not_repeated_at_the_next_beginning(n):
    x = torch.randn(2, n, 3, dtype=torch.float64) / n**0.5

    def force(x):
        return x - x @ (x.mT @ x)

    def step(x0, x, r):
        r = r - 0.1 * force(x)
        x = x + 0.1 * r
        return [x, r - 0.1 * force(x)]

    functions = lambda x0: [x0.clone(), 2 * x0], step, lambda x0, x, r: [x.clone(), r.clone()]
    one = x[:1]
    plain = Loop(*(graph_of(f, *(a.clone() for a in [one] * k)) for f, k in zip(functions, (1, 3, 3), strict=True)), 2)
    reused = reusing(plain)
    assert (products(plain.step), products(reused.step)) == (4, 2)
    assert (plain.carried, reused.carried) == (2, 3)
    for steps in (0, 1, 4):
        of_all, of_few = (NativeLoop(loop, [x], 2)(steps, x) for loop in (plain, reused))
        for found, expected in zip(of_few, of_all, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_step_without_common_products_is_left_as_it_is():
    x = torch.randn(1, 5, 2, dtype=torch.float64)
    loop = loop_of(lambda x: [x.mT @ x], x)
    assert reusing(loop) is loop


@pytest.mark.parametrize(
    ("dtype", "column_masses"),
    [
        (torch.float64, True),
        pytest.param(torch.float64, False, marks=pytest.mark.long),
        *(pytest.param(torch.float32, masses, marks=pytest.mark.long) for masses in (False, True)),
    ],
)
@pytest.mark.long
def test_trajectories_on_tall_matrices_are_those_of_torch(dtype, column_masses):
    import pyro

    from pyro_manifold.distributions import StiefelUniform
    from pyro_manifold.infer import OHMC

    F = 30 * DATA.to(dtype)[:, :3]

    def model():
        U = pyro.sample("U", StiefelUniform(N, 3))
        pyro.factor("likelihood", (F * U).sum())

    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        pyro.set_rng_seed(0)
        fixed = {"step_size": 1e-3, "num_steps": 5, "adapt_step_size": False, "adapt_mass_matrix": False}
        run = OHMC(model, **fixed, column_masses=column_masses).prepare(2, 0, None)
        run.policy.make(run.state)
        transition = run.transitions[-1]
        assert transition.graph.backend == "native"
        assert transition._loop.source.by_rows
        assert transition.difference(run.state, run.tuning.settings(1), run.random) is None
    finally:
        torch.set_default_dtype(previous)
