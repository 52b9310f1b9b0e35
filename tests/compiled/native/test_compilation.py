"""A compiled loop is compared with its functions, and inputs or functions that do not fit have an error."""

import pytest
import torch

from pyro_manifold.compiled import compile_loop, vectorise
from tests.infer.mcmc.compilers import native_code

X, SIZE = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3), torch.tensor([0.1], dtype=torch.float64)


def loop_of(step, example=(X, SIZE), **options):
    return compile_loop(lambda x, size: [x.clone()], step, lambda x0, size, x: [x], 1, list(example), 5, **options)


@native_code
def test_a_loop_of_several_steps_is_that_of_python():
    loop = loop_of(lambda x0, size, x: [x + size * x.sin()])
    expected = X
    for _ in range(7):
        expected = expected + SIZE * expected.sin()
    torch.testing.assert_close(loop(7, X, SIZE)[0], expected)


class Counting:
    """A step that depends on how often it was called."""

    calls = 0

    def __call__(self, x0, size, x):
        self.calls += 1
        return [x + self.calls]


@native_code
@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (lambda x0, size, x: x + size, r"step returns tensor.*expected a list of tensors"),
        (lambda x0, size, x: [x, x], "step returns 2 tensors, expected carried=1"),
        (lambda x0, size, x: [x.sum(1, keepdim=True)], r"step returns \(1, 1\).* begin returns as \(1, 3\)"),
        (lambda x0, size, x: [x.float()], r"step returns .* of torch.float32"),
        (lambda x0, size, x: [x + torch.randn(3)], "random numbers must be inputs"),
        (Counting(), "other values when they are called again"),
        (lambda x0, size, x: [x if x.sum() > 0 else -x], "it branches on"),
    ],
    ids=["no list", "two", "another shape", "another dtype", "random", "counting", "branch"],
)
def test_functions_that_do_not_fit(step, sentence):
    with pytest.raises(ValueError, match=sentence):
        loop_of(step)


@native_code
@pytest.mark.parametrize("size", [0.1, SIZE[0]], ids=["number", "no dimension"])
def test_inputs_without_a_dimension_of_chains(size):
    with pytest.raises(ValueError, match=r"compile_loop: input 1 is .*expected a tensor"):
        loop_of(lambda x0, size, x: [x + size], (X, size))
    loop = loop_of(lambda x0, size, x: [x + size])
    with pytest.raises(ValueError, match=r"a compiled loop: input 1 is .*expected a tensor"):
        loop(1, X, size)


def test_distributions_of_torch_are_traced_without_validation():
    labels = (X.sum(1) > 0).to(X)

    def energy(b):
        b = b.detach().requires_grad_()
        value = -torch.distributions.Bernoulli(logits=X @ b).log_prob(labels).sum()
        return value.detach(), *torch.autograd.grad(value, [b])

    many = vectorise(energy, [X])
    assert many.backend == "traced"
    assert torch.distributions.Distribution._validate_args, "validation is as before"
    for found, expected in zip(many(X), zip(*map(energy, X), strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


def test_without_a_graph_one_row_is_the_function():
    branch = lambda x: (x.sum() if x.sum() > 0 else -x.sum(),)  # noqa: E731
    with pytest.warns(UserWarning, match="it branches on"):
        many = vectorise(branch, [X])
    assert many.of_one_row(X[0])[0] == branch(X[0])[0]
