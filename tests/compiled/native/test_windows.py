"""Pooling, resizing and distances in terms of other operators, against torch's, with all of their options."""

import math
from itertools import product

import pytest
import torch
from torch.nn import functional

from pyro_manifold.compiled.native.distances import TABLE as DISTANCES
from pyro_manifold.compiled.native.windows import TABLE as WINDOWS

_ATEN = torch.ops.aten
SIZES = {1: (2, 3, 7), 2: (2, 3, 7, 5), 3: (1, 2, 5, 4, 6)}


def of_ties(*shape):
    """Numbers of which many are equal, some are infinite and a few are NaN."""
    x = torch.randint(-2, 3, shape).double()
    x.view(-1)[::11], x.view(-1)[5::13] = -math.inf, math.inf
    x.view(-1)[3::17] = math.nan
    return x


@pytest.mark.parametrize("spatial", [2, 3])
def test_averages(spatial):
    forward, backward = (getattr(_ATEN, f"avg_pool{spatial}d{end}").default for end in ("", "_backward"))
    options = product([1, 2, 3, (3, 2, 4)[:spatial]], [1, 2, 3], [0, 1], [False, True], [False, True], [None, 3])
    x, compared = torch.randn(SIZES[spatial]), 0
    for kernel, stride, padding, *others in options:
        sides = [list(k) if isinstance(k, tuple) else [k] * spatial for k in (kernel, stride, padding)]
        if 2 * padding > min(sides[0]):
            continue
        expected = forward(x, *sides, *others)
        torch.testing.assert_close(WINDOWS[forward](x, *sides, *others), expected)
        gradient = torch.randn(expected.shape)
        torch.testing.assert_close(
            WINDOWS[backward](gradient, x, *sides, *others), backward(gradient, x, *sides, *others)
        )
        compared += 1
    assert compared > 100


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("ties", [False, True])
def test_the_largest(spatial, ties):
    """The entry that torch takes where several are largest, none is a number, or all are minus infinity."""
    forward, backward = (getattr(_ATEN, f"max_pool{spatial}d_with_indices{end}").default for end in ("", "_backward"))
    x = of_ties(*SIZES[spatial]) if ties else torch.randn(SIZES[spatial])
    options = product([2, 3, (3, 2, 1)[:spatial]], [1, 2, 3], [0, 1], [1, 2], [False, True])
    compared = 0
    for kernel, stride, padding, dilation, ceil in options:
        sides = [list(k) if isinstance(k, tuple) else [k] * spatial for k in (kernel, stride, padding, dilation)]
        if 2 * padding > min(sides[0]) or dilation * (max(sides[0]) - 1) >= min(x.shape[2:]) + 2 * padding:
            continue
        values, places = forward(x, *sides, ceil)
        found = WINDOWS[forward](x, *sides, ceil)
        torch.testing.assert_close(found, (values, places), rtol=0, atol=0, equal_nan=True)
        gradient = torch.randn(values.shape)
        expected = backward(gradient, x, *sides, ceil, places)
        torch.testing.assert_close(WINDOWS[backward](gradient, x, *sides, ceil, places), expected)
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("spatial", [2, 3])
def test_windows_that_cover_everything(spatial):
    average = [getattr(_ATEN, f"_adaptive_avg_pool{spatial}d{end}").default for end in ("", "_backward")]
    largest = [getattr(_ATEN, f"adaptive_max_pool{spatial}d{end}").default for end in ("", "_backward")]
    for counts in product([1, 2, 3, 5, 8], repeat=spatial):
        x = of_ties(*SIZES[spatial])
        values, places = largest[0](x, counts)
        torch.testing.assert_close(WINDOWS[largest[0]](x, counts), (values, places), rtol=0, atol=0, equal_nan=True)
        gradient = torch.randn(values.shape)
        expected = largest[1](gradient, x, places)
        torch.testing.assert_close(WINDOWS[largest[1]](gradient, x, places), expected)
        x = torch.randn(x.shape)
        torch.testing.assert_close(WINDOWS[average[0]](x, counts), average[0](x, counts))
        torch.testing.assert_close(WINDOWS[average[1]](gradient, x), average[1](gradient, x))


RESIZED = [(name.rstrip("123d"), k) for k in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")]
RESIZED += [("upsample_linear", 1), ("upsample_bilinear", 2), ("upsample_trilinear", 3), ("upsample_bicubic", 2)]


@pytest.mark.parametrize(("name", "spatial"), RESIZED)
def test_resizing(name, spatial):
    forward, backward = (getattr(_ATEN, f"{name}{spatial}d{end}").default for end in ("", "_backward"))
    x = torch.randn(2, 3, *(4, 3, 2)[:spatial])
    aligned = [[]] if "nearest" in name else [[False], [True]]
    for factors, given, corners in product(
        product([0.6, 1.0, 1.7, 2.0, 2.2, 3.0], repeat=spatial), [False, True], aligned
    ):
        sizes = [max(1, int(n * factor)) for n, factor in zip(x.shape[2:], factors, strict=True)]
        options = [*corners, *(factors if given else [None] * spatial)]
        expected = forward(x, sizes, *options)
        torch.testing.assert_close(WINDOWS[forward](x, sizes, *options), expected)
        if name == "upsample_nearest" and any(m == 2 * n for m, n in zip(sizes, x.shape[2:], strict=True)):
            continue  # torch's own derivative is not that of its function, if a given factor is not 2
        gradient = torch.randn(expected.shape)
        torch.testing.assert_close(
            WINDOWS[backward](gradient, sizes, x.shape, *options), backward(gradient, sizes, x.shape, *options)
        )


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_repeated_ends(spatial):
    backward = getattr(_ATEN, f"replication_pad{spatial}d_backward").default
    x = torch.randn(SIZES[spatial])
    for widths in product([0, 2, -1], [1, 3], repeat=spatial):
        gradient = torch.randn(functional.pad(x, widths, mode="replicate").shape)
        torch.testing.assert_close(WINDOWS[backward](gradient, x, widths), backward(gradient, x, widths))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, math.inf])
@pytest.mark.parametrize("case", ["all differ", "rows are equal", "entries are equal", "huge", "infinite"])
def test_distances(p, case):
    if case == "infinite" and p == math.inf:
        pytest.skip("torch's derivative is then NaN everywhere")
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    x[1] = y[2] if case == "rows are equal" else x[1]
    x[0, 1] = y[0, 1] if case == "entries are equal" else x[0, 1]
    x[2] *= 1e150 if case == "huge" and p != 0.5 else 1.0
    x[3, :2] = torch.tensor([math.inf, 1.0]) if case == "infinite" else x[3, :2]
    y[2] = x[1] if case == "rows are equal" else y[2]
    distances = _ATEN._cdist_forward(x, y, p, 2)
    torch.testing.assert_close(DISTANCES[_ATEN._cdist_forward.default](x, y, p, 2), distances, equal_nan=True)
    given = (torch.randn(distances.shape), x, y, p, distances)
    expected = _ATEN._cdist_backward(*given)
    torch.testing.assert_close(DISTANCES[_ATEN._cdist_backward.default](*given), expected, equal_nan=True)
    x[0] = x[1] if case == "rows are equal" else x[0]
    distances = _ATEN._pdist_forward(x, p)
    torch.testing.assert_close(DISTANCES[_ATEN._pdist_forward.default](x, p), distances, equal_nan=True)
    pairs = (torch.randn(distances.shape), x, p, distances)
    expected = _ATEN._pdist_backward(*pairs)
    torch.testing.assert_close(DISTANCES[_ATEN._pdist_backward.default](*pairs), expected, equal_nan=True)
