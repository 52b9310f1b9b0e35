"""Statements that repeat with other arrays, indices and constants become loops, which compute the same numbers."""

from itertools import pairwise

import pytest
import torch

from pyro_manifold.compiled.native import rolled, rolling, source_of
from tests.compiled.native.loops import in_torch, loop_of, native_function
from tests.compiled.native.random_densities import energy_and_gradient
from tests.infer.mcmc.compilers import native_code

DATA = torch.randn(700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def autoregression(x):
    """Errors that depend on the ones before, as of a moving average: constants of each step, and a state."""
    errors = [DATA[0] - x[0]]
    for value in DATA[1:STEPS]:
        errors.append(value - x[0] - x[1].tanh() * errors[-1])
    return -torch.stack(errors).square().sum() / 2


def hidden_markov(x):
    log_alpha = -((DATA[0] - x[:2]) ** 2)
    for value in DATA[1:STEPS]:
        log_alpha = torch.logsumexp(log_alpha[:, None] + x[2:].reshape(2, 2).log_softmax(1), 0) - (value - x[:2]) ** 2
    return torch.logsumexp(log_alpha, 0)


def volatility(x):
    """Several sums that grow with each step, at different depths."""
    variance, total = x[0].exp(), 0.0
    for before, value in pairwise(DATA[:STEPS]):
        variance = 0.1 + x[1].sigmoid() * (before - x[2]) ** 2 + x[3].sigmoid() * variance / 2
        total = total - variance.log() / 2 - (value - x[2]) ** 2 / (2 * variance)
    return total


def matrices(x):
    """A state that is a matrix, and loops inside of a step."""
    state = torch.eye(2, dtype=x.dtype)
    turn = x[:4].reshape(2, 2)
    for value in DATA[: 2 * STEPS]:  # its steps have half as many statements
        state = (state @ turn / 2).tanh() + 0.1 * value
    return state.sum()


STEPS = 80
MODELS = (autoregression, hidden_markov, volatility, matrices)


@native_code
@pytest.mark.parametrize("density", [MODELS[0], *(pytest.param(each, marks=pytest.mark.long) for each in MODELS[1:])])
def test_loops_compute_the_same_numbers(monkeypatch, density):
    x = torch.randn(5, 6, dtype=torch.float64)
    function = energy_and_gradient(density)
    rolls = []
    longest = rolling._longest
    monkeypatch.setattr(rolling, "_longest", lambda *args: (rolls.append(longest(*args)), rolls[-1])[1])
    found = native_function(function, x)(1, x)
    assert any(roll is not None for roll in rolls)
    monkeypatch.setattr(rolling, "FEWEST_STATEMENTS", 10**9)
    for here, unrolled, expected in zip(found, native_function(function, x)(1, x), in_torch(function, x), strict=True):
        assert torch.equal(here, unrolled)
        torch.testing.assert_close(here, expected, rtol=1e-9, atol=1e-9)


@native_code
def test_a_wrong_place_is_seen(monkeypatch):
    x = torch.randn(3, 6, dtype=torch.float64)
    function = energy_and_gradient(autoregression)
    right = rolling._affine
    monkeypatch.setattr(rolling, "_affine", lambda numbers: right(numbers) and f"{numbers[0]} + 0 * t")
    found = native_function(function, x)(1, x)
    assert not torch.allclose(found[0], in_torch(function, x)[0])


@pytest.mark.long
@pytest.mark.parametrize("density", MODELS)
def test_the_source_does_not_grow_with_the_number_of_steps(monkeypatch, density):
    sizes = []
    for steps in (240, 480):
        monkeypatch.setattr("tests.compiled.native.test_rolling.STEPS", steps)
        loop = loop_of(energy_and_gradient(density), torch.zeros(1, 6, dtype=torch.float64))
        text = source_of(loop, [(1, 6)], torch.float64).text
        sizes.append(text.count("\n"))
    assert sizes[1] - sizes[0] < 60, sizes  # what is left over at the ends of loops


def lines_of(statements):
    return [f"ARRAY(a{k}, 2);" for k in range(1, 1000)] + statements


def test_what_differs_in_an_operation_stays():
    same = [f"{{ AT(a{k + 1}, 0) = (AT(a{k}, 0) * AT(a1, {k})); }}" for k in range(1, 700)]
    (loop,) = (line for line in rolled(lines_of(same)) if "int t = 0" in line)
    assert "t < 699" in loop
    other = [line.replace("*", "+-/"[k % 3]) if k % 7 == k // 100 else line for k, line in enumerate(same)]
    assert sum("int t = 0" in line for line in rolled(lines_of(other))) != 1


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("{{ AT(a{k}, 0) = spread(AT(k{k}, 0)); }}", id="another constant of the model"),
        pytest.param("for (int64_t step = 0; step < {k}; step++) {{", id="the steps of the program"),
    ],
)
def test_these_are_no_loop(statement):
    lines = lines_of([statement.format(k=k) for k in range(1, 700)])
    assert sorted(rolled(lines)) == sorted(lines)


def test_few_statements_stay():
    lines = lines_of([f"{{ AT(a{k + 1}, 0) = AT(a{k}, 0); }}" for k in range(1, 100)])
    assert rolled(lines) == lines
