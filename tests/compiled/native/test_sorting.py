"""Order, largest, medians, and what is picked and put by place: as in torch, with ties and NaN."""

import math

import pytest
import torch

from pyro_manifold.compiled.native import OutsideArrayError, Place, UnsupportedOperatorError, by_chain, sorting
from tests.compiled.native.loops import in_native, side_by_side, with_native_code

LENGTHS = (1, 2, 5, 17, 100)
"""Up to 16 numbers are inserted one by one; of 64 or more, the first comes from a heap."""


MANY_OR_ONE = [
    (True, torch.float64),
    *(
        pytest.param(*case, marks=pytest.mark.long)
        for case in ((False, torch.float32), (True, torch.float32), (False, torch.float64))
    ),
]
"""Whether there are many chains or one, and the dtype."""


@pytest.fixture(autouse=True)
def _numbers_of_the_dtype(request):
    given = getattr(request.node, "callspec", None)
    torch.set_default_dtype(given.params.get("dtype", torch.float64) if given else torch.float64)


def rows(n, dtype):
    """Chains with two rows each: without ties, with few and many, sorted, with NaN, with infinities, with NaN alone."""
    noise = torch.Generator().manual_seed(n)
    tied = [
        torch.randint(-levels, levels + 1, (2, n), generator=noise).to(dtype) for levels in (10**6, 5, 1, 5, 5, 5, 1)
    ]
    tied[3] = tied[3].sort()[0]
    tied[4][torch.rand(2, n, generator=noise) < 0.3] = math.nan
    tied[5][torch.rand(2, n, generator=noise) < 0.3] = math.inf
    tied[5][torch.rand(2, n, generator=noise) < 0.3] = -math.inf
    tied[6][:] = math.nan
    return torch.stack(tied)


def same(functions, x):
    for name, *both in side_by_side(functions, x):
        for number, (found, expected) in enumerate(zip(*both, strict=True)):
            what = f"{name}, result {number}"
            assert found.shape == expected.shape, what
            message = lambda text, what=what: f"{what}: {text}"  # noqa: E731
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=message)


def in_order(x):
    found = []
    for descending in (False, True):
        found += [x.sort(dim=1, descending=descending)[0], *x.sort(dim=1, descending=descending, stable=True)]
        found += [x.argsort(dim=0, descending=descending, stable=True), x.T.sort(0, descending=descending)[0]]
    return [*found, x.msort()]


def first_of_all(x):
    n = x.shape[1]
    found = []
    for k in {1, 2, n // 3, n} & set(range(1, n + 1)):
        for largest in (True, False):
            found += [*x.topk(k, largest=largest), *x.T.topk(k, 0, largest=largest, sorted=False)]
        found += [*x.kthvalue(k), *x.T.kthvalue(k, 0, keepdim=True)]
    return found


def medians(x):
    along = [*x.median(1), *x.nanmedian(1), *x.T.median(0, keepdim=True), *x.nanmedian(0)]
    return [*along, x.median(), x.nanmedian()]


def extremes(x):
    along = [*x.max(1), *x.min(1), *x.max(0, keepdim=True), *x.T.min(0), *x.cummax(1), *x.cummin(0), *x.cummax(0)]
    places = [x.argmax(), x.argmin(), x.argmax(1), x.argmin(0), x.argmax(1, keepdim=True), x.T.argmin(0)]
    return [*along, *places, x.amax(1), x.amin(0), *x.aminmax(dim=1)]


@pytest.mark.parametrize(("many", "dtype"), MANY_OR_ONE)
def test_values_and_places(many, dtype):
    x = torch.cat([rows(n, dtype) for n in LENGTHS], -1)
    ends = torch.tensor(LENGTHS).cumsum(0).tolist()
    functions = {
        f"{what.__name__} of {n}": lambda x, what=what, end=end, n=n: what(x[:, end - n : end])
        for what in (in_order, first_of_all, medians, extremes)
        for n, end in zip(LENGTHS, ends, strict=True)
    }
    same(functions, x if many else x[4:5])  # one chain with NaN


def of_a_number(x):
    return [*x.max(0), *x.sort(0), *x.median(0), *x.cummax(0), *x.topk(1), *x.kthvalue(1), x.argmax()]


def test_numbers_without_dimensions():
    same({"a number": of_a_number}, rows(2, torch.float64)[:, 0, 0])


def against_the_median_of_three(n):
    """Numbers for which each pivot is about the smallest, so that selecting falls back to a heap."""
    half, x = n // 2, [0] * n
    for i in range(1, half + 1):
        if i % 2:
            x[i - 1], x[i] = i, half + i
        x[half + i - 1] = 2 * i
    return torch.tensor(x, dtype=torch.float64)


def test_selection_that_goes_wrong_is_finished_by_a_heap():
    x = against_the_median_of_three(500)
    x = torch.stack([x, -x, (x / 3).floor(), -(x / 7).floor(), x.flip(0)])
    sizes = (30, 250, 251, 495)
    same({k: lambda x, k=k: [y for largest in (True, False) for y in x.topk(k, largest=largest)] for k in sizes}, x)


GRADIENTS = {
    "sorted": lambda x: x.sort(dim=1, stable=True)[0].sin() * torch.arange(x.shape[1]),
    "descending": lambda x: x.sort(dim=0, stable=True, descending=True)[0].sin() * x,
    "largest": lambda x: x.max(1)[0].sin() + x.min(1)[0].exp(),
    "all": lambda x: x.max().sin() + x.min() + x.median() + x.amax().cos(),
    "shared": lambda x: x.amax(1).sin() + x.amin(1).exp(),
    "first": lambda x: x.topk(3, 1)[0].sin() * torch.arange(3) + x.topk(3, 1, largest=False)[0].exp(),
    "number k": lambda x: x.kthvalue(2, 1)[0].sin() * x.kthvalue(4, 1)[0],
    "median": lambda x: x.median(1)[0].sin() + x.nanmedian(1)[0].exp(),
    "so far": lambda x: x.cummax(1)[0].sin() * x.cummin(1)[0].cos(),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.1, 0.5, 0.77], dtype=x.dtype), 1).sin(),
    "gaps": lambda x: x.sort(dim=1, stable=True)[0].diff().square(),
    "ranks": lambda x: x.argsort(dim=1, stable=True).argsort(dim=1, stable=True) * x.sin(),
    "in another order": lambda x: x.sin().take_along_dim(x.argsort(dim=1, stable=True), 1) * torch.arange(x.shape[1]),
    "a row": lambda x: x.exp()[x[:, 0].argmax(0, True)] + x[-1 - x[:, 1].argmin(0, True)],
    "an element": lambda x: x.sin()[x[:, 0].argmax(0, True), x[0].argmin(0, True)] * x[0, x.argmin(1)].exp(),
    "of data": lambda x: torch.arange(10.0, dtype=x.dtype)[x.argmax(1)] * x[:, 0],
    "put": lambda x: x.index_put((x[:, 0].argmax(0, True),), x[:1].sin()).exp(),
    "added": lambda x: x.index_add(1, x.argmax(1), x[:, :2].sin()).exp(),
    "scattered": lambda x: torch.zeros_like(x).scatter(1, x.argsort(dim=1, stable=True), x.sin()) * x,
    "collected": lambda x: torch.zeros_like(x).scatter_add(1, (x > 0).long().cumsum(1), x.sin()).exp(),
    "filled": lambda x: x.index_fill(1, x.argmax(1), 0.5).exp(),
    "embedded": lambda x: torch.nn.functional.embedding(x.argmax(1), x.sin()[:, :2].mT.repeat(5, 1)),
}


def energy_and_gradient(function):
    def of_one_chain(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            energy = function(leaf).sum()
        return [energy.detach(), *torch.autograd.grad(energy, leaf)]

    return of_one_chain


@pytest.mark.parametrize(("many", "dtype"), MANY_OR_ONE)
def test_gradients_where_numbers_are_tied(many, dtype):
    noise = torch.Generator().manual_seed(0)
    ties = [torch.randint(-n, n + 1, (5, 2, 7), generator=noise).to(dtype) / n for n in (100, 2)]
    functions = {name: energy_and_gradient(density) for name, density in with_native_code(GRADIENTS, dtype).items()}
    for name, *both in side_by_side(functions, torch.cat(ties) if many else ties[1][:1]):
        message = lambda text, name=name: f"{name}: {text}"  # noqa: E731
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(*both, rtol=tolerance, atol=1e-6, msg=message)


# ---- indices that are none ----------------------------------------------------------------------------------------


def test_what_is_picked_where_there_is_nothing_is_nan():
    """Torch raises an error; native code has no way to do so, and a chain whose density is NaN does not move there."""
    x = torch.tensor([[1.0, 0.5], [2.0, 2.0], [3.0, -2.0], [4.0, -3.0], [5.0, math.nan], [6.0, 1e300], [7.0, math.inf]])

    def function(x):
        data, place = torch.tensor([10.0, 20.0]), x[1:].long()
        return [data[place], x.index_put((place,), x[:1] * 2), x.index_add(0, place, x[:1])]

    picked, put, added = in_native(function, x)
    exists = torch.tensor([True, False, True, False, False, False, False])
    assert picked[:, 0].isfinite().equal(exists)
    assert picked[exists, 0].tolist() == [10.0, 10.0]
    assert put[exists, 0].tolist() == [2.0, 6.0]
    assert added[exists, 0].tolist() == [2.0, 6.0]
    for result in (put, added):
        assert result[:, :2].isnan().any(1).logical_or(x.isnan().any(1)).equal(~exists)


def test_order_by_nan_stays_inside():
    """Places come from comparisons, which NaN decides in its own way."""
    x = torch.full((3, 40), math.nan)
    x[1, ::3] = 1.0

    def function(x):
        order, first = x.argsort(), x.topk(30)[1]
        return [x[order], x[first], x[x.argmax(0, True)], x[x.cummax(0)[1]], torch.arange(40.0)[order].sort()[0]]

    assert in_native(function, x)[-1].equal(torch.arange(40.0).expand(3, 40))
    same({"of zeros": function}, x.nan_to_num(0.0))


def test_a_place_of_a_chain_is_looked_at(monkeypatch):
    """A checked build detects an index that an emitter does not clamp."""
    monkeypatch.setenv("PYRO_MANIFOLD_CHECKED", "1")
    monkeypatch.setattr(by_chain, "place", lambda index, i, size: Place(f"1 + (int)LANE({index.at(i)}, lane)"))
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for function in (lambda x: [x[x.argmax(0, True)]], lambda x: [x.index_put((x.argmax(0, True),), x[:1])]):
        with pytest.raises(OutsideArrayError, match="at place 2 of 2"):
            in_native(function, x)


def test_a_torch_that_breaks_ties_otherwise_keeps_its_own_topk(monkeypatch):
    assert sorting.picks_as_here()
    monkeypatch.setattr(sorting, "picks_as_here", lambda: False)
    with pytest.raises(UnsupportedOperatorError, match="takes others of equal numbers"):
        in_native(lambda x: [x.topk(2)[0]], torch.randn(2, 5))


def test_masks_that_depend_on_sites_are_left_to_torch():
    with pytest.raises(ValueError, match="mask"):
        in_native(lambda x: [x[x > 0]], torch.ones(2, 5))
