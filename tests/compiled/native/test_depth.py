"""Graphs of any depth, such as states that a loop of the model carries on: no pass recurses to their depth."""

import pytest
import torch

from tests.compiled.native.loops import in_native, in_torch
from tests.infer.mcmc.compilers import native_code

pytestmark = native_code


def carried_on(x):
    """Each value is read once, so that its expression stands inside of the next one."""
    for _ in range(600):
        x = 0.9 * x + 0.1
    return (x,)


def turned(x):
    """Views of views, which alone cost no arithmetic."""
    for step in range(600):
        x = x.flip(0) if step % 2 else x.roll(1)
    return (x,)


@pytest.mark.parametrize("function", [carried_on, turned])
def test_many_steps_agree_with_torch(function):
    x = torch.randn(3, 4, dtype=torch.float64)
    for found, expected in zip(in_native(function, x), in_torch(function, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
