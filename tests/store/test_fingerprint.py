"""Programs and data are told apart by what they do, and known again in any process."""

import subprocess
import sys
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.store.fingerprint import described, fingerprint, parts_of

SCALE = 2.0


def helper(x):
    return x * SCALE


def model(y, slope=1.0):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(helper(w) * slope, 1.0), obs=y)


def of(source, **names):
    """The model of a program's text."""
    space = {"pyro": pyro, "dist": dist, "torch": torch, "__name__": "__main__", **names}
    exec(source, space)
    return space["model"]


SOURCE = """
def model(y):
    w = pyro.sample("w", dist.Normal(0.0, SCALE))
    pyro.sample("y", dist.Normal(helper(w), 1.0), obs=y)
"""


@pytest.mark.parametrize(
    ("source", "names", "same"),
    [
        (SOURCE, {}, True),
        ("# words\n\n\n" + SOURCE.replace("def model(y):", 'def model(y):\n    "Says what."'), {}, True),
        (SOURCE.replace("0.0", "0.1"), {}, False),
        (SOURCE.replace('"w"', '"v"'), {}, False),
        (SOURCE.replace("Normal(0", "Laplace(0"), {}, False),
        (SOURCE, {"SCALE": 3.0}, False),
        (SOURCE, {"helper": lambda x: x + 1}, False),
        (SOURCE, {"unused": 3}, True),
        (SOURCE.replace("(y)", "(y, n=3)", 1), {}, False),
    ],
)
def test_what_a_model_does_counts(source, names, same):
    before = of(SOURCE, SCALE=2.0, helper=helper)
    after = of(source, **{"SCALE": 2.0, "helper": helper, **names})
    assert (fingerprint(before) == fingerprint(after)) == same


def test_a_program_without_a_module():
    before, after = (of(text, __name__=None) for text in (SOURCE, SOURCE.replace("0.0", "0.5")))
    assert before.__module__ is None
    assert fingerprint(before) != fingerprint(after)


def enclosing(value):
    def model():
        return value

    return model


class Linear(pyro.nn.PyroModule):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.bias = torch.nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x + self.bias


DIFFERENT = [
    (torch.zeros(3), torch.zeros(4)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float16)),
    (torch.zeros(3), torch.tensor([0.0, 0.0, 1e-30])),
    (np.zeros(3), np.zeros((3, 1))),
    (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
    (enclosing(torch.zeros(2)), enclosing(torch.ones(2))),
    (partial(enclosing, 1), partial(enclosing, 2)),
    (Linear(2), Linear(3)),
    ({"a": 1}, {"a": 2}),
    ([1, 2], (1, 2)),
    (1, 1.0),
    (True, 1),
    ({1, 2}, {1, 3}),
    (dist.Normal(0.0, 1.0), dist.Normal(0.0, 2.0)),
    (torch.utils.data.TensorDataset(torch.zeros(2)), torch.utils.data.TensorDataset(torch.ones(2))),
]


@pytest.mark.parametrize("pair", DIFFERENT, ids=[type(one).__name__ for one, _ in DIFFERENT])
def test_different_values_differ(pair):
    one, other = pair
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_layout_order_and_generators_do_not_count():
    x = torch.randn(3, 4)
    assert fingerprint(x) == fingerprint(x.mT.contiguous().mT)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(torch.Generator().manual_seed(1)) == fingerprint(torch.Generator().manual_seed(2))


def test_what_refers_to_itself_ends():
    here = []
    here.append(here)
    assert fingerprint(here) == fingerprint(here)


def test_another_process_says_the_same():
    program = (
        "import torch; torch.set_default_dtype(torch.float64)\n"
        "from tests.store.test_fingerprint import *\n"
        "print(fingerprint([model, Linear(3), {'b', 'a', 'c'}, dist.Gamma(2.0, 3.0), torch.ones(3)]))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = fingerprint([model, Linear(3), {"b", "a", "c"}, dist.Gamma(2.0, 3.0), torch.ones(3)])
    assert found.stdout.strip() == here


def test_parts_have_the_names_of_arguments():
    from pyro_manifold.infer import OHMC

    parts = parts_of(OHMC(model), (torch.ones(3),), {"slope": 2.0})
    assert list(parts) == ["the model's code", "the kernel's functions", "the argument 'y'", "the argument 'slope'"]
    assert parts["the argument 'slope'"] == "2.0"
    assert parts["the argument 'y'"] == described(torch.ones(3))
    assert parts["the argument 'y'"].startswith("float64 (3,), ")
