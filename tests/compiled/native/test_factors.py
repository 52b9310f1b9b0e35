"""QR and singular values in C against torch: values, derivatives, matrices without full rank and of all sizes."""

import math

import pytest
import torch

from tests.compiled.native.loops import in_native, in_torch, side_by_side

SHAPES = [(4, 3), (3, 3), (3, 5), (1, 4), (4, 1), (1, 1), (9, 4)]


@pytest.fixture(autouse=True)
def _numbers_of_the_dtype(request):
    given = getattr(request.node, "callspec", None)
    torch.set_default_dtype(given.params.get("dtype", torch.float64) if given else torch.float64)


def qr(x):
    return [*torch.linalg.qr(x), *torch.linalg.qr(x, mode="complete"), torch.linalg.qr(x, mode="r")[1]]


def singular_values(x):
    """Function that does not depend on the signs of singular vectors."""
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    whole_u, _, whole_vh = torch.linalg.svd(x)
    products = [whole_u.mT @ whole_u, whole_vh @ whole_vh.mT, u @ (s.unsqueeze(-1) * vh)]
    return [s, torch.linalg.svdvals(x), *products]


def of_singular_values(x):
    norms = [torch.linalg.matrix_norm(x, order) for order in ("nuc", 2, -2)]
    return [*norms, torch.linalg.cond(x), torch.linalg.pinv(x), torch.linalg.pinv(x, rtol=0.5)]


def close(found, expected, digits, name=""):
    """Compare relative to the largest entry of each chain's matrix."""
    for here, there in zip(found, expected, strict=True):
        assert here.shape == there.shape
        unit = there.abs().reshape(len(there), -1).amax(1).clamp(min=1e-320)
        distance = ((here - there).abs().reshape(len(there), -1).amax(1) / unit).max()
        assert distance <= digits * torch.finfo(there.dtype).eps, (name, distance)


def of_each_shape(function):
    """A function of one matrix as a function of the first entries of a vector, for each shape."""
    return {
        f"{function.__name__} of {shape}": lambda x, shape=shape: function(x[: math.prod(shape)].reshape(shape))
        for shape in SHAPES
    }


@pytest.mark.parametrize(
    ("chains", "dtype"),
    [
        (5, torch.float64),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((1, torch.float32), (1, torch.float64), (5, torch.float32))
        ),
    ],
)
def test_values(chains, dtype):
    x = torch.randn(chains, max(map(math.prod, SHAPES)))
    functions = [of_each_shape(function) for function in (qr, singular_values, of_singular_values)]
    for name, found, expected in side_by_side(functions[0] | functions[1] | functions[2], x):
        close(found, expected, 5000 if name.startswith("of_") else 50, name)


def test_several_matrices_in_a_chain():
    x = torch.randn(5, 2, 3, 4, 3)
    for function in (qr, singular_values):
        close(in_native(function, x), in_torch(function, x), 50)


def test_products_of_reflections():
    x, y = torch.randn(5, 6, 4), torch.randn(5, 3)
    found = in_native(lambda x, y: [torch.linalg.householder_product(x, y)], x, y)
    close(found, in_torch(lambda x, y: [torch.linalg.householder_product(x, y)], x, y), 50)


def of_deficient_rank():
    one = torch.outer(torch.arange(1.0, 5.0), torch.tensor([2.0, 0.0, -1.0]))
    repeated = torch.eye(4)[:, [1, 0, 1]]
    graded = torch.tensor([1e200, 1.0, 1e-200]) * torch.eye(4)[:, :3]
    return torch.stack(
        [torch.zeros(4, 3), one, repeated, graded, 1e-300 * torch.randn(4, 3), 1e300 * torch.randn(4, 3)]
    )


def test_deficient_rank_and_all_sizes():
    """Factors are orthogonal whatever the rank; signs are LAPACK's but where rounding decides them."""
    x = of_deficient_rank()

    def function(x):
        q, r = torch.linalg.qr(x)
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return [q @ r, q.mT @ q, r.abs(), u.mT @ u, vh @ vh.mT, s, u @ (s.unsqueeze(-1) * vh)]

    close(in_native(function, x), in_torch(function, x), 50)
    signed = x[[0, 2, 3]]
    close(in_native(qr, signed), in_torch(qr, signed), 50)


def test_triangular_matrices_stay():
    """LAPACK reflects nothing where nothing stands below the diagonal."""
    x = torch.randn(5, 4, 4).triu()
    q, r = in_native(lambda x: torch.linalg.qr(x), x)
    assert torch.equal(r, x)
    assert torch.equal(q, torch.eye(4).expand(5, 4, 4))


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_not_finite_is_nan(wide):
    """Neighbouring chains are finite, and the loop ends."""
    x = torch.randn(5, 4, 3)
    x[1, 3, 2], x[2, 1, 1], x[3, 0, 0] = torch.inf, -torch.inf, torch.nan
    x = x.mT.contiguous() if wide else x
    for value in in_native(lambda x: [*torch.linalg.svd(x, full_matrices=False), torch.linalg.qr(x)[1]], x):
        found = value.flatten(1).isfinite()
        assert found[[0, 4]].all()
        assert not found[1:4].all(1).any()
    for value in in_native(lambda x: [*torch.linalg.svd(x, full_matrices=False)], x):
        assert value[1:4].isnan().all()


DENSITIES = {
    "qr": lambda x: [*torch.linalg.qr(x)],
    "values": lambda x: [torch.linalg.svdvals(x)],
    "polar factor": lambda x: [(lambda u, _, vh: u @ vh)(*torch.linalg.svd(x, full_matrices=False))],
    "norms": lambda x: [torch.linalg.matrix_norm(x, order) for order in ("nuc", 2)],
    "pseudo-inverse": lambda x: [torch.linalg.pinv(x)],
    "eigenvectors": lambda x: [(lambda d, u: (u * d.sin()) @ u.mT)(*torch.linalg.eigh(x.mT @ x / 4))],
}


def gradients(density, order):
    def function(x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            value = sum(part.sin().sum() for part in density(leaf))
            found = [value]
            for _ in range(order):
                (gradient,) = torch.autograd.grad(found[-1], leaf, create_graph=True)
                found.append(gradient.square().sum())
        return [gradient.detach(), value.detach()]

    return function


ORDERS = [1, pytest.param(2, marks=pytest.mark.long)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(4, 3), pytest.param((3, 3), marks=pytest.mark.long), (3, 4)])
def test_gradients(shape, order):
    functions = {name: gradients(density, order) for name, density in DENSITIES.items()}
    if shape == (3, 4):
        del functions["eigenvectors"]  # two eigenvalues are both zero
    for name, found, expected in side_by_side(functions, torch.randn(5, *shape)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.long
def test_gradients_in_single_precision():
    torch.set_default_dtype(torch.float32)
    x = torch.randn(5, 4, 3)
    functions = {name: gradients(density, 1) for name, density in DENSITIES.items()}
    for name, found, expected in side_by_side(functions, x, exact=[x.double()]):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3, msg=lambda text, name=name: f"{name}: {text}")
