"""Which priors of a small network predict well: test log score and prior predictions, by gain and output scale.

    python -m benchmarks.accuracy.networks.priors [--only wine iris] [--scales 1 2 4 8] [--gains auto 1.5]

Networks by `to_bayesian_`: orthogonal hidden weights of the given gain, output weights N(0, s²/width) with the given
output scale s, biases N(0, 1). Data are scikit-learn's, with standardised inputs; half of the rows are for training
(300 of the digits), the others for testing. `OHMC` with four chains draws from the posterior. Square hidden matrices
have two components, so neighbouring layers should differ in width. Cells have a figure for each seed, which chooses
the rows for training, the draws of the prior and the chains.

Columns: the entropy of predicted probabilities under the prior as a share of log K, the mean over draws of the prior
and test rows (1: every draw gives all classes the same probability, 0: every draw is certain); the share of prior draws
and rows whose largest probability is above 0.95; the negative log likelihood of a test row, of the mean
of the predicted probabilities; accuracy; the largest R-hat of predictions over 95 % of them. Diabetes is a
regression of standardised outcomes with a noise of its own: there the first column is the standard deviation of the
network's output over rows under the prior (median over draws), and the log score is of the density. The last row
of each table is logistic regression (ridge regression) of scikit-learn at its defaults.
"""

import argparse
import itertools
import math
from typing import NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_sample
from sklearn import datasets, linear_model
from torch import Tensor, nn

from benchmarks.accuracy.networks.scores import entropy, negative_log_likelihood
from benchmarks.predictions import Predictions
from benchmarks.study import option, read
from benchmarks.tables import show
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.nn import to_bayesian_

PRIOR_DRAWS = 400
LOADERS = {
    "breast cancer": datasets.load_breast_cancer, "wine": datasets.load_wine, "iris": datasets.load_iris,
    "digits": datasets.load_digits, "diabetes": datasets.load_diabetes,
    "diabetes above the median": datasets.load_diabetes,
}  # fmt: skip
COLUMNS = ["gain", "output scale", "entropy / log K", "certain, %", "test NLL", "accuracy, %", "R-hat, 95 %"]


class Data(NamedTuple):
    """Standardised inputs and outcomes to train on and to test; ``classes`` is 1 for a regression."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int


def load(name: str, seed: int) -> Data:
    """Half of the rows to train on, at most 300; inputs standardised by these, constant ones left at 0."""
    found = LOADERS[name]()
    order = np.random.default_rng(seed).permutation(len(found.data))
    train = order[: min(len(order) // 2, 300)]
    test = order[len(train) :]
    mean, deviation = found.data[train].mean(0), found.data[train].std(0)
    x = (found.data - mean) / np.where(deviation > 0, deviation, 1.0)
    if name == "diabetes above the median":
        y = torch.tensor(found.target > np.median(found.target)).long()
    elif name == "diabetes":
        y = torch.tensor((found.target - found.target[train].mean()) / found.target[train].std())
    else:
        y = torch.tensor(found.target)
    x = torch.tensor(x)
    return Data(x[train], y[train], x[test], y[test], 1 if name == "diabetes" else int(y.max()) + 1)


def network_of(
    data: Data, widths: list[int], gain: float | None, scale: float, activation: type[nn.Module]
) -> nn.Module:
    sizes, layers = (data.x.shape[1], *widths), []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    network = nn.Sequential(*layers, nn.Linear(sizes[-1], data.classes))
    return to_bayesian_(network, gain=gain, prior_scale=scale / math.sqrt(sizes[-1]))


def model_of(network: nn.Module, data: Data):
    def classifier(x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = network(x)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        return logits.softmax(-1)

    def regression(x: Tensor, y: Tensor | None = None) -> Tensor:
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        mean = network(x)[..., 0]
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, noise), obs=y)
        return torch.stack([mean, noise.expand_as(mean)], -1)

    return regression if data.classes == 1 else classifier


def prior_columns(network: nn.Module, data: Data) -> tuple[float, float]:
    """The first two columns, of draws of the prior at the test inputs."""
    with torch.no_grad():
        outputs = torch.stack([network(data.test_x) for _ in range(PRIOR_DRAWS)])
    if data.classes == 1:
        return float(outputs[..., 0].std(1).median()), math.nan
    probabilities = outputs.softmax(-1).flatten(0, 1)
    share = entropy(probabilities).mean() / math.log(data.classes)
    return float(share), 100 * float((probabilities.amax(-1) > 0.95).double().mean())


def posterior_columns(network: nn.Module, data: Data, draws: int, warmup: int) -> tuple[float, float, float]:
    """Test score, accuracy and R-hat, of four chains."""
    model = model_of(network, data)

    def score(output: Tensor) -> Tensor:
        if data.classes > 1:
            return output
        return dist.Normal(output[..., 0], output[..., 1]).log_prob(data.test_y).exp().unsqueeze(-1)

    predictions = Predictions(model, data.test_x, data.test_y, statistic=score)
    options = {"save_params": [], "consumers": [predictions], "num_chains": 4, "disable_progbar": True}
    MCMC(OHMC(model, init_strategy=init_to_sample), draws, warmup, **options).run(data.x, data.y)
    r_hat = float(predictions.r_hat.flatten().quantile(0.95))
    if data.classes == 1:
        return -float(predictions.mean.log().mean()), math.nan, r_hat
    right = (predictions.mean.argmax(-1) == data.test_y).double().mean()
    return float(negative_log_likelihood(predictions.mean, data.test_y)), 100 * float(right), r_hat


def linear_columns(data: Data) -> tuple[float, float]:
    """Test score and accuracy of the linear model of scikit-learn."""
    if data.classes == 1:
        fitted = linear_model.Ridge().fit(data.x, data.y)
        noise = (data.y - torch.tensor(fitted.predict(data.x))).std()
        density = dist.Normal(torch.tensor(fitted.predict(data.test_x)), noise)
        return -float(density.log_prob(data.test_y).mean()), math.nan
    fitted = linear_model.LogisticRegression(max_iter=2000).fit(data.x, data.y)
    probabilities = torch.tensor(fitted.predict_proba(data.test_x))
    right = (probabilities.argmax(-1) == data.test_y).double().mean()
    return float(negative_log_likelihood(probabilities, data.test_y)), 100 * float(right)


def cells(found: list[tuple[float, ...]], digits: tuple[int, ...]) -> list[str]:
    """Return a cell for each column, with the figures of all seeds; an empty one where there are none."""
    columns = zip(*found, strict=True)
    return [
        "" if any(map(math.isnan, column)) else ", ".join(f"{value:.{places}f}" for value in column)
        for column, places in zip(columns, digits, strict=True)
    ]


def rows(name: str, arguments: argparse.Namespace):
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[arguments.activation]
    sets = [load(name, seed) for seed in range(arguments.seeds)]
    for gain in arguments.gains:
        for scale in arguments.scales:
            found = []
            for seed, data in enumerate(sets):
                pyro.set_rng_seed(seed)
                network = network_of(data, arguments.widths, gain, scale, activation)
                prior = prior_columns(network, data)
                found.append((*prior, *posterior_columns(network, data, arguments.draws, arguments.warmup)))
            yield ["auto" if gain is None else gain, f"{scale:g}", *cells(found, (2, 0, 3, 1, 2))]
    linear = [linear_columns(data) for data in sets]
    yield ["linear", "", "", "", *cells(linear, (3, 1)), ""]


def gain(text: str) -> float | None:
    """Return the gain that an argument names; None for that of `to_bayesian_`."""
    return None if text == "auto" else float(text)


def main(argv: list[str] | None = None) -> None:
    arguments = read(
        __doc__, argv, only=option(list(LOADERS), choices=list(LOADERS)),
        activation=option("relu", choices=["tanh", "relu"]), seeds=2, draws=200, warmup=200,
        widths=option([16], "of hidden layers, one unlike the next"), scales=[1.0, 2.0, 4.0, 8.0, 16.0],
        gains=option([None, 1.5], "a number, or auto", type=gain),
    )  # fmt: skip
    for name in arguments.only:
        print(f"### {name}, {'-'.join(map(str, arguments.widths))} hidden units, {arguments.activation}\n")
        show(COLUMNS, list(rows(name, arguments)))
        print(flush=True)


if __name__ == "__main__":
    main()
