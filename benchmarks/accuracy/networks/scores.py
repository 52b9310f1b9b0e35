"""Scores of probabilities p of classes, ``(examples, classes)``, by labels or by those of a reference, q."""

import torch
from scipy.stats import mannwhitneyu


def agreement(p, q):
    """The share of examples with the same most probable class."""
    return (p.argmax(-1) == q.argmax(-1)).to(p.dtype).mean()


def total_variation(p, q):
    """½ Σₖ |pₖ − qₖ|, mean over examples."""
    return 0.5 * (p - q).abs().sum(-1).mean()


def negative_log_likelihood(p, labels):
    """Minus the log probability of the label, mean over examples."""
    return -p.gather(1, labels[:, None]).log().mean()


def brier(p, labels):
    """Squared distance from the label, one-hot encoded, mean over examples."""
    return (p - torch.nn.functional.one_hot(labels, p.shape[1])).square().sum(-1).mean()


def calibration_error(p, labels, bins=15):
    """|accuracy − confidence|, mean over bins of confidence, as Guo, Pleiss, Sun & Weinberger (arXiv 1706.04599)."""
    confidence, predicted = p.max(-1)
    excess, place = confidence - (predicted == labels).to(p.dtype), (confidence * bins).ceil().long() - 1
    return p.new_zeros(bins).index_add(0, place.clamp(0, bins - 1), excess).abs().sum() / len(p)


def entropy(p):
    """−Σₖ pₖ log pₖ of each example."""
    return torch.special.entr(p).sum(-1)


def auroc(inside, outside):
    """The share of pairs of scores in which that of the outside example is larger; ties count half."""
    return mannwhitneyu(outside, inside, method="asymptotic").statistic / (len(inside) * len(outside))
