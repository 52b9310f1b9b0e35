"""Each operator of the table, in C against torch."""

import math

import pytest
import torch

from pyro_manifold.compiled.native import ELEMENTWISE, OPERATORS, UnsupportedOperatorError, compiler, special
from tests.compiled.native.loops import in_native, in_torch, side_by_side, with_native_code

ANY = ("abs", "asinh", "atan", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "exp", "exp2", "expm1", "floor")
ANY += ("isfinite", "isinf", "isnan", "lgamma", "logical_not", "neg", "reciprocal", "relu", "round", "sigmoid", "sign")
ANY += ("sin", "sinh", "square", "tan", "tanh", "trunc")
POSITIVE = ("log", "log10", "log1p", "log2", "rsqrt", "sqrt", "lgamma", "digamma")
WITHIN_ONE = ("acos", "asin", "atanh", "erfinv")
OF_TWO = ("add", "atan2", "div", "eq", "fmod", "ge", "gt", "le", "lt", "maximum", "minimum", "mul", "ne", "remainder")
OF_TWO += ("sub", "logical_and", "logical_or", "logical_xor")
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 800.0, -800.0, 1e-300, 0.5)

STRUCTURE = {
    "view": lambda x, y: (x.reshape(2, 6) + 0, x.mT.reshape(2, 6), (x + y).reshape(12)[3:], x[1].view(2, 1, 2)),
    "permute": lambda x, y: (x.mT * 2, torch.einsum("ij,kj->ik", x, y), x.unsqueeze(0).permute(2, 0, 1)),
    "slice": lambda x, y: (x[1:], x[:, ::2], x[-1], x[..., 1:3] * y[..., :2], x.narrow(1, 1, 2), x[2:0]),
    "expand": lambda x, y: (x[:1].expand(3, 4), x.sum(1, keepdim=True) * y, x[0, 0] + y),
    "split": lambda x, y: (*x.split(2, 1), *x.split([1, 3], -1), *x.unbind(), *x.chunk(2, 1)),
    "diagonal": lambda x, y: (x.diagonal(), x.diagonal(1) * 2, x.diagonal(-1), torch.diag_embed(x[0])),
    "triangles": lambda x, y: (x.tril(), x.triu(1), (x @ y.mT).tril(-1)),
    "strided": lambda x, y: ((x + y).as_strided((2, 3), (1, 4), 1), (2 * x).as_strided((3,), (5,))),
    "cat": lambda x, y: (torch.cat([x, y]), torch.cat([x, y, x[:, :1]], 1), torch.stack([x, y], 2), x.repeat(2, 1)),
    "roll": lambda x, y: (x.roll(1, 0), x.roll(-1, 1), x.roll((1, 2), (0, 1)), x.flip(1), x.roll(5)),
    "index": lambda x, y: (
        x[torch.tensor([2, 0, -1])],
        x[:, torch.tensor([[1, 0], [3, 3]])],
        x[torch.tensor([0, 1]), torch.tensor([2, 3])],
        x[torch.tensor([True, False, True])],
        x.index_select(1, torch.tensor([3, 1])),
        x.gather(1, torch.tensor([[0, 3], [1, 1], [2, 0]])),
        torch.nn.functional.embedding(torch.tensor([1, 0]), x),
    ),
    "order": lambda x, y: (
        *x.sort(dim=1, stable=True),
        *x.sort(dim=0, stable=True, descending=True),
        *x.topk(2, 0),
        *x.kthvalue(3),
        *x.median(1),
        *(x * y).nanmedian(0),
        x.median(),
        *x.max(1),
        *y.min(0),
        *x.cummax(1),
        *y.cummin(0),
    ),
    "quantile": lambda x, y: (x.quantile(0.3, 1),),
    "indices of a chain": lambda x, y: (
        x[y[:, 0].argmax(0, True)],
        x[y.argmin(0), x[0].argmax(0, True)],
        x.gather(1, y.argsort(dim=1, stable=True)),
        x.scatter_add(0, y.argsort(dim=0, stable=True), y),
        x.index_put((y[:, 0].argmax(0, True),), y[:1], accumulate=True),
        x.index_fill(1, y.argmax(1), 0.5),
    ),
    "put": lambda x, y: (
        x.index_put((torch.tensor([0, 0, 2]),), y, accumulate=True),
        x.index_put((torch.tensor([1, 2]), torch.tensor([0, 3])), y[0, :2]),
        x.index_add(1, torch.tensor([1, 1]), y[:, :2]),
        x.scatter(1, torch.tensor([[1], [0], [2]]), y[:, :1]),
        x.scatter_add(0, torch.tensor([[1, 1, 0, 2]]), y[:1]),
        x.slice_scatter(y[:, :2], 1, 1, 3),
        x.select_scatter(y[0], 0, 1),
        x.diagonal_scatter(y[0, :3]),
        torch.nn.functional.pad(x, (1, 2), value=3.0),
        torch.nn.functional.pad(x, (-1, 2, 1, -2)),
    ),
    "sum": lambda x, y: (
        x.sum(),
        x.sum(0),
        x.sum((0, 1)),
        (x * y).sum(-1, keepdim=True),
        (x > y).sum().to(x),
        x.mean(1),
    ),
    "extremes": lambda x, y: (
        x.amax(),
        x.amin(1),
        x.max(),
        x.max(1)[0],
        x.min(0)[0],
        x.clamp(-0.5, 0.5),
        x.clamp(min=y),
    ),
    "truths": lambda x, y: (
        (x > y).all(0),
        (x > 1).any(),
        torch.where(x > y, x, -y),
        x.masked_fill(x > 0, 2.0),
        ~(x > y),
    ),
    "conversions": lambda x, y: (
        x.bool() * y,  # not x * y
        (x - 1.5).clamp(min=0).bool().sum().to(x),
        (3 * x).long().to(x) + y,
        (3 * x).int() * 2,
        torch.zeros_like(x, dtype=torch.bool).copy_(x).to(x),
        (x > 0).long() * (y > 0),
    ),
    "products": lambda x, y: (x.prod(), x.prod(0), x.cumsum(0), x.cumsum(1)[:, -1], x.var(), x.std(1)),
    "variances": lambda x, y: (x.var(0, correction=0), x.var((0, 1)), torch.ops.prims.var(x, [1], 0.0)),
    "layer norms": lambda x, y: (
        torch.nn.functional.layer_norm(x, (4,)),
        torch.nn.functional.layer_norm(x, (3, 4), y, y + 1, eps=0.1),
        torch.func.grad(lambda x: torch.nn.functional.layer_norm(x, (4,), y[0]).sin().sum())(x),
    ),
    "norms": lambda x, y: (
        x.norm(),
        torch.linalg.vector_norm(x, dim=1),
        x.logsumexp(0),
        x.softmax(1),
        x.log_softmax(0),
    ),
    "powers": lambda x, y: (
        *(x.abs() ** e for e in (0.5, 1, 2, 3, -0.5, -1, -2, 1.7, 0)),
        2.0**x,
        x.abs() ** y,
        torch.rsub(x, y, alpha=2),
        torch.add(x, y, alpha=3),
        torch.sub(x, 1.5),
        2 / x,
        torch.full_like(x, 3.0) * x,
        torch.fill(x, y[0, 0]) * x,
        torch.ones_like(x) + y,
    ),
    "links": lambda x, y: (
        torch.logaddexp(x, y),
        torch.nn.functional.softplus(x),
        torch.nn.functional.logsigmoid(x),
        torch.nn.functional.gelu(x),
        torch.xlogy(x.abs(), y.abs()),
        torch.lerp(x, y, 0.3),
        torch.lerp(x, y, y.abs()),
        torch.addcmul(x, x, y, value=2),
        torch.addcdiv(x, y, x),
        torch.addcdiv(x, y, x, value=-0.5),
        torch.nan_to_num(x / 0),
        torch.special.entr(x.abs()),
    ),
    "gamma functions": lambda x, y: (
        # Away from poles, where the last digit of an argument counts; of large negative ones torch's sums are slow.
        torch.polygamma(2, torch.where(x > 0, x + 0.3, -1.2 - 0.6 * y.sigmoid())),
        torch.mvlgamma(x.abs() + 1.5, 3),
        torch.special.xlog1py(y, x.abs()),
        torch.logcumsumexp(x, 1),
    ),
    "quotients": lambda x, y: (
        torch.div(x, y, rounding_mode="floor"),
        torch.div(x, y, rounding_mode="trunc"),
        x.round(decimals=1),
        torch.fill(x, 3.0) * y,
    ),
    "links at the edge": lambda x, y: (
        *(torch.logaddexp(x / a, y / b) for a, b in ((0, 0), (0, 1), (1, 0))),
        torch.logaddexp(x / 0, x / 0),
        torch.logaddexp(x * math.nan, y),
        torch.where(x > 0, -math.inf, x).logsumexp(1, keepdim=True),
        (x - math.inf).logsumexp(0),
        (x.abs() / 0).logsumexp((0, 1)),
        torch.nn.functional.softplus(40 * x),
        torch.nn.functional.softplus(x, beta=3, threshold=1),
        torch.xlogy(0 * x, y / 0),
        torch.xlogy(x * 0, y * math.nan),
        torch.xlogy(x, 0 * y.abs()),
        torch.xlogy(x, torch.tensor([1, 2, 3, 4])),
        x[:, :0].logsumexp(1),
    ),
}

MATRICES = {
    "products": lambda a, b: (
        a @ b,
        a @ a,
        b.mT @ a @ b,
        a @ b[:, 0],
        a[0] @ b,
        b[:, 0].dot(b[:, 1]),
        torch.stack([a, 2 * a]) @ b,
        torch.addmm(b, a, b),
        torch.outer(b[:, 0], b[:, 1]),
        a[:1] @ b[:, :1],
        torch.baddbmm(b[None], a[None], b[None]),
    ),
    "solve": lambda a, b: (
        torch.linalg.solve(a, b),
        torch.linalg.solve(a, b[:, 0]),
        torch.linalg.solve(a, b.mT, left=False),
        torch.linalg.solve(torch.stack([a, a.mT]), torch.stack([b, 2 * b])),
        torch.linalg.solve_ex(a, b)[0],
    ),
    "inverse": lambda a, b: (torch.linalg.inv(a), torch.linalg.inv_ex(a)[0], torch.linalg.inv(torch.stack([a, a.mT]))),
    "determinant": lambda a, b: (
        torch.linalg.det(a),
        *torch.linalg.slogdet(a),
        torch.linalg.slogdet(a[[1, 0, 2, 3]])[0],
    ),
    "lu": lambda a, b: (
        torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
        torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True),
        torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b.mT, left=False),
    ),
    "cholesky": lambda a, b: (
        torch.linalg.cholesky(a @ a.mT),
        torch.linalg.cholesky(a @ a.mT, upper=True),
        torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mT)),
        torch.cholesky_inverse(torch.linalg.cholesky(a @ a.mT)),
    ),
    "triangular": lambda a, b: (
        *(torch.linalg.solve_triangular(a.triu() if upper else a.tril(), b, upper=upper) for upper in (True, False)),
        *(
            torch.linalg.solve_triangular(a.triu() if upper else a.tril(), b.mT, upper=upper, left=False)
            for upper in (True, False)
        ),
        torch.linalg.solve_triangular(a, b, upper=True, unitriangular=True),
    ),
    "exponential": lambda a, b: (torch.linalg.matrix_exp(a / 3), torch.linalg.matrix_exp(torch.stack([a, a.mT / 100]))),
    "eigenvalues": lambda a, b: (
        torch.linalg.eigvalsh(a + a.mT),
        (lambda d, u: u @ (d.unsqueeze(-1) * u.mT))(*torch.linalg.eigh(torch.stack([a + a.mT, a @ a.mT]))),
    ),
    "orthogonal factors": lambda a, b: (
        *torch.linalg.qr(a),
        *torch.linalg.qr(b, mode="complete"),
        torch.linalg.householder_product(b, b[0]),
    ),
    "singular values": lambda a, b: (
        torch.linalg.svdvals(a),
        torch.linalg.matrix_norm(b, "nuc"),
        torch.linalg.pinv(b),
        (lambda u, s, vh: u @ (s.sin().unsqueeze(-1) * vh))(*torch.linalg.svd(b, full_matrices=False)),
    ),
}


DTYPES = [torch.float64, torch.float32]


def close(found, expected, digits, name=""):
    for position, (here, there) in enumerate(zip(found, expected, strict=True)):
        size = there[there.isfinite()].abs().max() if there.isfinite().any() else torch.tensor(1.0)
        tolerance = digits * torch.finfo(there.dtype).eps * float(size.clamp(min=1e-3))
        torch.testing.assert_close(
            here,
            there,
            rtol=digits * torch.finfo(there.dtype).eps,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, position=position: f"{name}, result {position}: {text}",
        )


@pytest.fixture(autouse=True)
def _numbers_of_the_dtype(request):
    # The dtype of a model's numbers is the default one.
    torch.set_default_dtype(
        request.node.callspec.params.get("dtype", torch.float64) if hasattr(request.node, "callspec") else torch.float64
    )


def some(*shape, dtype, shift=0.0):
    return torch.randn(*shape, dtype=dtype) + shift


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chains", [1, 5])
def test_functions_of_numbers(dtype, chains):
    def everything(x, y):
        inside = x.clamp(-0.99, 0.99)
        return [
            *[getattr(torch, name)(x) for name in ANY],
            *[getattr(torch, name)(x.abs() + 0.1) for name in POSITIVE],
            *[getattr(torch, name)(inside) for name in WITHIN_ONE],
            torch.acosh(x.abs() + 1),
            *[getattr(torch, name)(x, y) for name in OF_TWO],
            torch.where(x > y, x, y),
            (x > 0) & (y > 0),
            (x > 0) | (y > 0),
        ]

    inputs = [2 * some(chains, 7, dtype=dtype), some(chains, 7, dtype=dtype)]
    close(in_native(everything, *inputs), in_torch(everything, *inputs), 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_numbers_at_the_edge(dtype):
    """NaN, infinities, zeros of both signs, overflow: how a divergence is noticed."""

    def everything(x, y):
        unary = {*ANY, *POSITIVE, *WITHIN_ONE, "acosh"} - {"digamma"}
        return [*[getattr(torch, name)(x) for name in sorted(unary)], *[getattr(torch, name)(x, y) for name in OF_TWO]]

    values = torch.tensor(SPECIAL, dtype=dtype)
    x, y = torch.cartesian_prod(values, values).unbind(1)
    inputs = [x.reshape(11, 11), y.reshape(11, 11)]
    close(in_native(everything, *inputs), in_torch(everything, *inputs), 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_structure(dtype):
    inputs = [some(5, 3, 4, dtype=dtype), some(5, 3, 4, dtype=dtype)]
    for name, found, expected in side_by_side(with_native_code(STRUCTURE, dtype), *inputs):
        close(found, expected, 200, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices(dtype):
    inputs = [some(5, 4, 4, dtype=dtype), some(5, 4, 3, dtype=dtype)]
    inputs[0] = inputs[0] + 3 * torch.eye(4, dtype=dtype)[torch.randperm(4)]
    for name, found, expected in side_by_side(MATRICES, *inputs):
        close(found, expected, 2000, name)


def test_sums_of_booleans_are_left_to_torch():
    """Torch has true + true = true."""
    with pytest.raises(UnsupportedOperatorError, match="sums of booleans"):
        in_native(lambda x: [((x > 0) + (x > 1)).to(x)], torch.randn(2, 3))


def test_every_operator_is_tested():
    """Each operator of the table is in the graph of a case above."""
    tested = _operators_of_all_cases()
    aliases = {"_unsafe_view", "_unsafe_index", "_unsafe_index_put", "alias", "detach", "lift_fresh_copy", "reshape"}
    aliases |= {"copy", "empty_like", "new_empty", "new_empty_strided", "scalar_tensor", "t", "unbind", "split", "mv"}
    aliases |= {
        "as_strided_scatter",
        "_to_copy",
        "transpose",
        "_linalg_check_errors",
        "dot",
        "zeros_like",
        "clone",
        "triangular_solve",
    }
    aliases |= {"full_like", "ones_like", "_new_zeros_with_same_feature_meta"}
    assert set(OPERATORS) - tested - aliases == set()


def _operators_of_all_cases():
    from tests.compiled.native.loops import graph_of

    def names(function, *inputs):
        nodes = graph_of(function, *inputs).graph.nodes
        return {node.target.__name__.split(".")[0] for node in nodes if node.op == "call_function"}

    found = {*ANY, *POSITIVE, *WITHIN_ONE, *OF_TWO, "acosh", "where", "bitwise_and", "bitwise_or"}
    found |= set(special.ELEMENTWISE)  # which test_special.py goes through
    x, y, a, b = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(4, 3)
    for function in STRUCTURE.values():
        found |= names(lambda x, y, function=function: list(function(x, y)), x, y.clone())
    for function in MATRICES.values():
        found |= names(lambda a, b, function=function: list(function(a, b)), a, b)
    return found


def test_vector_functions_of_the_library_are_used():
    """Or exp of eight chains would take eight times as long as of one."""
    if "declare simd" not in compiler.vector_functions():
        pytest.skip("this C library has no vector functions")
    function = in_native(lambda x: [x.exp()], torch.randn(8, 3))
    assert function[0].shape == (8, 3)
    assert set(ELEMENTWISE) <= set(OPERATORS)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (100 * x).to(torch.int8).to(x) * x,
        lambda x: (300 * x).long().to(torch.uint8).to(x) * x,
        lambda x: x.sum().float().double() * x,
    ],
)
def test_numbers_that_wrap_or_are_rounded_are_not_covered(function):
    with pytest.raises(UnsupportedOperatorError, match="rounded or wrapped"):
        in_native(lambda x: [function(x)], torch.ones(2, 3))


def test_a_boolean_filled_with_a_number_is_true():
    x = torch.tensor([[0.5, 2.0, -1.0]])
    results = in_native(lambda x: [(x > 0).masked_fill(x > 1, 5).to(x)], x)
    assert results[0].tolist() == [[1.0, 1.0, 0.0]]
