"""Densities with a layer of torch.nn in them, of its weights and of its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.compiled.native.cases import Case, Shape, as_numbers

Made = Callable[[], Case]


def layer(make: Callable[[], Any], *inputs: Shape | Tensor) -> Made:
    """The case of a layer: tensors among its inputs are data, shapes are sites, and all of its weights are sites."""

    def case() -> Case:
        module = make()
        if not isinstance(module, nn.Module):
            module = _Function(module)
        module.eval()
        names = [name for name, _ in module.named_parameters()]
        own = [tuple(value.shape) for value in module.parameters()]
        shapes = [x for x in inputs if isinstance(x, tuple)]

        def log_density(*values: Tensor) -> Tensor:
            given = iter(values)
            arguments = tuple(next(given) if isinstance(x, tuple) else as_numbers(x) for x in inputs)
            return _read(functional_call(module, dict(zip(names, given, strict=True)), arguments))

        return Case(log_density, (*shapes, *own))

    return case


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.forward = function


def _read(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    """A number that all entries of a result change, each in a way of its own."""
    value = result[0] if isinstance(result, tuple) else result
    return (value * torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape)).sin().sum()


def numbers(*shape: int) -> Tensor:
    """Data, the same each time."""
    return torch.linspace(-1.5, 2.0, int(torch.tensor(shape).prod()), dtype=torch.float64).mul(7).sin().reshape(shape)


CLASSES = torch.tensor([0, 3, 1, 2, 2])
SIGNS = numbers(5, 4).sign()
SHARES = numbers(5, 4).sigmoid()
ROWS, IMAGES, SEQUENCE = numbers(6, 3), numbers(2, 4, 7, 6), numbers(3, 2, 3)
PLACES = torch.tensor([[0, 2, 1], [4, 4, 3]])

CONVOLUTIONS = {
    **{f"Conv{k}d": layer(lambda k=k: getattr(nn, f"Conv{k}d")(2, 3, 2), (1, 2, *[3] * k)) for k in (1, 2, 3)},
    **{
        f"ConvTranspose{k}d": layer(lambda k=k: getattr(nn, f"ConvTranspose{k}d")(2, 3, 2), (1, 2, *[3] * k))
        for k in (1, 2, 3)
    },
}

FOLDING = {
    "Fold": layer(lambda: nn.Fold((4, 5), (2, 3)), (2, 12, 9)),
    "Unfold": layer(lambda: nn.Unfold((2, 3), dilation=(1, 2), padding=1, stride=(2, 1)), (2, 3, 6, 7)),
}

_SIZES: dict[int, Shape] = {1: (2, 3, 9), 2: (2, 3, 8, 7), 3: (1, 2, 6, 5, 4)}


def _of_all_dimensions(name: str, *options: Any, **named: Any) -> dict[str, Made]:
    return {
        f"{name}{k}d": layer(lambda k=k: getattr(nn, f"{name}{k}d")(*options, **named), size)
        for k, size in _SIZES.items()
    }


POOLING = {
    **_of_all_dimensions("MaxPool", 3),
    **_of_all_dimensions("AvgPool", 3),
    **_of_all_dimensions("AdaptiveAvgPool", 3),
    **_of_all_dimensions("AdaptiveMaxPool", 3),
    **_of_all_dimensions("LPPool", 2.0, 2),
    "FractionalMaxPool2d": layer(
        lambda: nn.FractionalMaxPool2d(2, (2, 2), _random_samples=numbers(2, 3, 2).abs()), (2, 3, 5, 4)
    ),
}

RESIZING = {
    "Upsample": layer(lambda: nn.Upsample((5, 7), mode="bilinear", align_corners=True), (2, 3, 3, 4)),
    "UpsamplingBilinear2d": layer(lambda: nn.UpsamplingBilinear2d((3, 5)), (2, 3, 3, 4)),
    "UpsamplingNearest2d": layer(lambda: nn.UpsamplingNearest2d(scale_factor=2), (2, 3, 3, 4)),
    "grid_sample": layer(
        lambda: lambda x, places: nn.functional.grid_sample(x, places.tanh(), align_corners=False),
        (1, 2, 4, 3),
        (1, 3, 3, 2),
    ),
    "PixelShuffle": layer(lambda: nn.PixelShuffle(2), (2, 8, 3, 4)),
    "PixelUnshuffle": layer(lambda: nn.PixelUnshuffle(2), (2, 2, 6, 4)),
    "ChannelShuffle": layer(lambda: nn.ChannelShuffle(2), (2, 4, 3, 4)),
    "Flatten": layer(lambda: nn.Flatten(), (2, 3, 4)),
    "Unflatten": layer(lambda: nn.Unflatten(1, (3, 2)), (2, 6)),
    "Identity": layer(lambda: nn.Identity(), (3,)),
    **_of_all_dimensions("ReflectionPad", 2),
    **_of_all_dimensions("ReplicationPad", 2),
    **_of_all_dimensions("CircularPad", 2),
    **_of_all_dimensions("ConstantPad", 2, 0.5),
    **_of_all_dimensions("ZeroPad", 1),
}

NORMS = {
    **{
        f"BatchNorm{k}d": layer(lambda k=k, n=n: getattr(nn, f"BatchNorm{k}d")(n[1], track_running_stats=False), n)
        for k, n in _SIZES.items()
    },
    "BatchNorm1d of rows": layer(lambda: nn.BatchNorm1d(4, track_running_stats=False), (6, 4)),
    "BatchNorm2d with running statistics": layer(lambda: nn.BatchNorm2d(3), (2, 3, 4, 3)),
    **{
        f"InstanceNorm{k}d": layer(lambda k=k, n=n: getattr(nn, f"InstanceNorm{k}d")(n[1], affine=True), n)
        for k, n in _SIZES.items()
    },
    "GroupNorm": layer(lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "GroupNorm of rows": layer(lambda: nn.GroupNorm(2, 4, affine=False), (3, 4)),
    "LayerNorm": layer(lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
    "RMSNorm": layer(lambda: nn.RMSNorm(4), (3, 4)),
    "LocalResponseNorm": layer(lambda: nn.LocalResponseNorm(2), (3, 4, 5)),
}

RECURRENT = {
    "RNN": layer(lambda: nn.RNN(3, 4), SEQUENCE),
    "RNN of relu": layer(lambda: nn.RNN(3, 4, nonlinearity="relu"), SEQUENCE),
    "RNNCell": layer(lambda: nn.RNNCell(3, 4), ROWS),
    "LSTM": layer(lambda: nn.LSTM(3, 2, 2, bidirectional=True), SEQUENCE),
    "LSTMCell": layer(lambda: nn.LSTMCell(3, 4), (2, 3)),
    "GRU": layer(lambda: nn.GRU(3, 4), SEQUENCE),
    "GRUCell": layer(lambda: nn.GRUCell(3, 4), (2, 3)),
}

ATTENTION = {
    "MultiheadAttention": layer(lambda: nn.MultiheadAttention(4, 2), *[(5, 2, 4)] * 3),
    "MultiheadAttention without its weights": layer(
        lambda: _WithoutWeights(4, 2, kdim=3, vdim=2), (5, 2, 4), (3, 2, 3), (3, 2, 2)
    ),
    "scaled_dot_product_attention": layer(
        lambda: lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        *[(2, 2, 4, 3)] * 3,
    ),
    "TransformerEncoderLayer": layer(lambda: nn.TransformerEncoderLayer(4, 2, 2, dropout=0.0), (3, 1, 4)),
    "TransformerDecoderLayer": layer(lambda: nn.TransformerDecoderLayer(2, 1, 2, dropout=0.0), (3, 1, 2), (2, 1, 2)),
}


class _WithoutWeights(nn.MultiheadAttention):
    def forward(self, *inputs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(*inputs, need_weights=False)[0]


PRODUCTS = {
    "Linear": layer(lambda: nn.Linear(3, 2), ROWS),
    "Bilinear": layer(lambda: nn.Bilinear(3, 4, 2), (5, 3), SHARES),
    "Embedding": layer(lambda: nn.Embedding(5, 3, padding_idx=4), PLACES),
    "EmbeddingBag": layer(lambda: nn.EmbeddingBag(5, 3, mode="mean"), PLACES),
    "CosineSimilarity": layer(lambda: nn.CosineSimilarity(), (5, 3), (5, 3)),
    "PairwiseDistance": layer(lambda: nn.PairwiseDistance(), (5, 3), (5, 3)),
    "PairwiseDistance of 1": layer(lambda: nn.PairwiseDistance(1), (5, 3), (5, 3)),
    **{
        f"cdist of {p}": layer(lambda p=p: lambda x, y: torch.cdist(x, y, p), (2, 5, 3), (4, 3))
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.5, torch.inf)
    },
    "cdist of many": layer(lambda: lambda x, y: torch.cdist(x, y), (30, 2), (4, 2)),
    "pdist": layer(lambda: nn.functional.pdist, (5, 3)),
}

_ACTIVATIONS = ("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU")
_ACTIVATIONS += ("LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus")
_ACTIVATIONS += ("Softshrink", "Softsign", "Tanh", "Tanhshrink")
ACTIVATIONS = {
    **{name: layer(getattr(nn, name), (3, 4)) for name in _ACTIVATIONS},
    "Threshold": layer(lambda: nn.Threshold(0.1, 0.2), (3, 4)),
    **{name: layer(lambda name=name: getattr(nn, name)(-1), (3, 4)) for name in ("Softmax", "LogSoftmax", "Softmin")},
    "Softmax2d": layer(lambda: nn.Softmax2d(), (2, 3, 2, 2)),
    "Dropout": layer(lambda: nn.Dropout(), (3,)),
}

LOSSES = {
    "BCELoss": layer(lambda: lambda x: nn.BCELoss(weight=SHARES + 1)(x.sigmoid(), SHARES), (5, 4)),
    "BCEWithLogitsLoss": layer(lambda: nn.BCEWithLogitsLoss(pos_weight=SHARES[0] + 1), (5, 4), SHARES),
    "CTCLoss": layer(
        lambda: lambda x: nn.CTCLoss()(x.log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
        (5, 1, 4),
    ),
    "CosineEmbeddingLoss": layer(lambda: nn.CosineEmbeddingLoss(), (5, 4), (5, 4), SIGNS[:, 0]),
    "CrossEntropyLoss": layer(lambda: nn.CrossEntropyLoss(SHARES[0], label_smoothing=0.1), (5, 4), CLASSES),
    "CrossEntropyLoss of shares": layer(lambda: nn.CrossEntropyLoss(), (5, 4), SHARES.softmax(1)),
    "CrossEntropyLoss of images": layer(lambda: nn.CrossEntropyLoss(ignore_index=1), (1, 4, 5), CLASSES[None]),
    "GaussianNLLLoss": layer(lambda: lambda x, y: nn.GaussianNLLLoss()(x, SHARES, y.exp()), (5, 4), (5, 4)),
    "HingeEmbeddingLoss": layer(lambda: nn.HingeEmbeddingLoss(), (5, 4), SIGNS),
    "HuberLoss": layer(lambda: nn.HuberLoss(delta=0.5), (5, 4), (5, 4)),
    "HuberLoss of each": layer(lambda: nn.HuberLoss(reduction="none"), (5, 4), SHARES),
    "KLDivLoss": layer(lambda: lambda x: nn.KLDivLoss(reduction="batchmean")(x.log_softmax(1), SHARES), (5, 4)),
    "KLDivLoss of logarithms": layer(lambda: nn.KLDivLoss(reduction="sum", log_target=True), (5, 4), (5, 4)),
    "L1Loss": layer(lambda: nn.L1Loss(), (5, 4), (5, 4)),
    "MSELoss": layer(lambda: nn.MSELoss(reduction="sum"), (5, 4), (5, 4)),
    "MarginRankingLoss": layer(lambda: nn.MarginRankingLoss(), (5, 4), (5, 4), SIGNS),
    "MultiLabelMarginLoss": layer(lambda: nn.MultiLabelMarginLoss(), (2, 4), torch.tensor([[0, 1, -1, 0]] * 2)),
    "MultiLabelSoftMarginLoss": layer(lambda: nn.MultiLabelSoftMarginLoss(), (5, 4), (SHARES > 0.5).to(SHARES)),
    "MultiMarginLoss": layer(lambda: nn.MultiMarginLoss(), (5, 4), CLASSES),
    "NLLLoss": layer(lambda: lambda x: nn.NLLLoss(SHARES[0], ignore_index=1)(x.log_softmax(1), CLASSES), (5, 4)),
    "PoissonNLLLoss": layer(lambda: nn.PoissonNLLLoss(full=True), (5, 4), 4 * SHARES),
    "SmoothL1Loss": layer(lambda: nn.SmoothL1Loss(beta=0.3), (5, 4), (5, 4)),
    "SoftMarginLoss": layer(lambda: nn.SoftMarginLoss(), (5, 4), SIGNS),
    "TripletMarginLoss": layer(lambda: nn.TripletMarginLoss(), (5, 4), (5, 4), SHARES),
}

LAYERS = {
    name: made
    for part in (CONVOLUTIONS, FOLDING, POOLING, RESIZING, NORMS, RECURRENT, ATTENTION, PRODUCTS, ACTIVATIONS, LOSSES)
    for name, made in part.items()
}
