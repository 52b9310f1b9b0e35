"""A recurrent network with orthogonal weights whose probabilities are calibrated.

A network of 16 tanh units reads scikit-learn's 8×8 digits row by row. Input and recurrent weights are orthonormal
matrices Q and R with inferred gains, and the size of the logits is inferred too:

    h_t = tanh(a Q x_t + b + r R h_{t-1}),   labels ~ Categorical(logits = s Wᵀh_8).

    python -m examples.calibrated_network --output results

prints what the prior expects of labels, the summary, and accuracy, log score, calibration error and detection of other
images for one network, an ensemble and the posterior, each also with temperature scaling, and writes two pictures.
--prior default takes pixels and priors that are not chosen by what they expect of labels.
"""

import math
import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_sample
from sklearn.metrics import roc_auc_score
from torch import nn

from examples import datasets, gallery
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.nn import to_bayesian_

UNITS = 16
COLOURS = {"one network": "0.45", "ensemble of 5": "#D55E00", "posterior": "#0072B2"}
INPUTS = ("test images", "with noise", "turned by 90°", "pixels shuffled", "validation")


def model(images, labels=None):
    Q = pyro.sample("Q", StiefelUniform(UNITS, 8))
    R = pyro.sample("R", StiefelUniform(UNITS, UNITS))
    gains = pyro.sample("gains", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))  # of Q and of R
    bias = pyro.sample("bias", dist.Normal(0.0, 0.1).expand([UNITS]).to_event(1))
    weight = pyro.sample("weight", dist.Normal(0.0, UNITS**-0.5).expand([UNITS, 10]).to_event(2))
    scale = pyro.sample("scale", dist.LogNormal(2.0, 1.0))  # of the logits
    rows = images.transpose(0, 1).reshape(-1, 8) @ (gains[..., :1, None] * Q).mT + bias[..., None, :]
    step, state = (gains[..., 1:, None] * R).mT, 0.0
    for row in rows.unflatten(-2, (8, len(images))).unbind(-3):
        state = torch.tanh(row if isinstance(state, float) else row + state @ step)
    logits = state @ (scale[..., None, None] * weight)
    with pyro.plate("images", len(images)):
        pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
    return logits


class Rows(nn.Module):
    """The same network without priors: weights of torch.nn, of any size."""

    def __init__(self):
        super().__init__()
        self.input, self.recurrent = nn.Linear(8, UNITS), nn.Linear(UNITS, UNITS, bias=False)
        self.output = nn.Linear(UNITS, 10)

    def forward(self, images):
        state = images.new_zeros(len(images), UNITS)
        for row in self.input(images).unbind(-2):
            state = torch.tanh(row + self.recurrent(state))
        return self.output(state)


def default_model():
    """Return the model of `to_bayesian_`, with fixed gains and a fixed scale of the output weights."""
    network = to_bayesian_(Rows(), prior_scale=8 / math.sqrt(UNITS))

    def model(images, labels=None):
        logits = network(images)
        with pyro.plate("images", len(images)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
        return logits

    return model


def load(count, raw=False, validation=100):
    """Return ``count`` images for training with their labels, images by the names of `INPUTS`, and labels of those.

    Images are standardised by the mean image and the standard deviation around it of those for training; ``raw`` ones
    are only scaled to −1 to 1.
    """
    images, labels = (torch.as_tensor(array) for array in datasets.digits())
    images, order = images.to(torch.get_default_dtype()), torch.randperm(len(images))
    images, labels = images[order] / 8 - 1, labels[order]
    centre = images[:count].mean(0)
    spread = (images[:count] - centre).square().mean().sqrt()
    if not raw:
        images, spread = (images - centre) / spread, 1.0
    test = images[count + validation :]
    noisy, turned = test + 0.7 * spread * torch.randn_like(test), test[:400].rot90(1, (-2, -1))
    shuffled = test[:400].flatten(1)[:, torch.randperm(64)].reshape(-1, 8, 8)
    others = (test, noisy, turned, shuffled, images[count : count + validation])
    answers = {"test images": labels[count + validation :], "validation": labels[count : count + validation]}
    return images[:count], labels[:count], dict(zip(INPUTS, others, strict=True)), answers


def train(images, labels, steps):
    """Return a network trained by AdamW with batches of 50."""
    network = Rows()
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(images), (50,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimiser.step()
    return network.requires_grad_(False)


def classical(images, labels, inputs, steps, members=5):
    """Return probabilities for each of the inputs by one network and by an ensemble."""
    trained = [train(images, labels, steps) for _ in range(members)]
    of_each = {name: torch.stack([network(x).softmax(-1) for network in trained]) for name, x in inputs.items()}
    one, mean = (
        {name: part(values) for name, values in of_each.items()} for part in (lambda v: v[0], lambda v: v.mean(0))
    )
    return {"one network": one, "ensemble of 5": mean}


def scaled(predictions, labels):
    """Return predictions to the power, normalised, that has the largest likelihood of the validation images."""
    grid = torch.logspace(-1, 1, 201)
    powers = {name: values.clamp(min=1e-12).log() for name, values in predictions.items()}
    losses = torch.stack([nn.functional.cross_entropy(power * powers["validation"], labels) for power in grid])
    power = grid[losses.argmin()]
    return float(power), {name: (power * values).softmax(-1) for name, values in powers.items()}


class Predictions:
    """A consumer of draws: mean of a function of the logits over draws of a chain, and squared deviations from it."""

    def __init__(self, model, images, of_logits):
        self.model, self.images, self.of_logits = model, images, of_logits
        self.draws, self.of_chains, self.squares = 0, 0.0, 0.0

    def __call__(self, iteration):
        if iteration.kept:
            with torch.no_grad():
                found = torch.vmap(self.of_one_chain, randomness="different")(iteration.values)
            self.draws, change = self.draws + 1, found - self.of_chains
            self.of_chains = self.of_chains + change / self.draws
            self.squares = self.squares + change * (found - self.of_chains)

    def of_one_chain(self, values):  # its labels are drawn too, and not used
        return self.of_logits(pyro.condition(self.model, data=values)(self.images))

    @property
    def mean(self):
        return self.of_chains.mean(0)

    @property
    def r_hat(self):
        within = self.squares.mean(0) / (self.draws - 1)
        return (1 - 1 / self.draws + self.of_chains.var(0) / within).sqrt()


def posterior(model, images, labels, inputs, draws):
    """Return the predictions for each of the inputs, those of single draws for the first, and the MCMC."""

    def confidence_and_class(logits):
        confidence, predicted = logits.softmax(-1).max(-1)
        return torch.stack([confidence, *(predicted == k for k in range(10))], -1)

    predictions = {name: Predictions(model, x, lambda logits: logits.softmax(-1)) for name, x in inputs.items()}
    single = Predictions(model, inputs["test images"], confidence_and_class)
    kernel = OHMC(model, num_steps=10, column_masses=False, init_strategy=init_to_sample)
    sites = ["gains", "scale"] if "weight" in pyro.poutine.trace(model).get_trace(images) else []
    options = {
        "save_params": sites,
        "consumers": [*predictions.values(), single],
        "num_chains": 4,
        "disable_progbar": True,
    }
    mcmc = MCMC(kernel, draws, draws, **options)
    mcmc.run(images, labels)
    if sites:
        mcmc.summary()
    return predictions, single.mean, mcmc


def report_of_prior(model, images, networks=200):
    """Print and return how certain networks of the prior are, and the share of images in their commonest class."""
    with torch.no_grad():
        probabilities = torch.stack([model(images).softmax(-1) for _ in range(networks)])
    counts = nn.functional.one_hot(probabilities.argmax(-1), 10).sum(1)
    confidence, share = probabilities.amax(-1).mean(), counts.amax(-1).sum() / counts.sum()
    print(f"networks of the prior: confidence {confidence:.2f}, {share:.0%} of the images in the commonest class")
    return float(confidence), float(share)


def calibration_error(probabilities, labels, bins=15):
    """Return the mean over bins of confidence of the distance from confidence to accuracy, weighted by their images."""
    confidence, predicted = probabilities.max(-1)
    excess, place = confidence - (predicted == labels).to(confidence.dtype), (confidence * bins).ceil().long() - 1
    return excess.new_zeros(bins).index_add(0, place.clamp(0, bins - 1), excess).abs().sum() / len(labels)


def entropy(probabilities):
    """Return the entropy of each prediction."""
    return torch.special.entr(probabilities).sum(-1)


def detection(inside, outside):
    """Return the area under the ROC curve of the entropy, by which images are detected that are no test images."""
    return roc_auc_score([0] * len(inside) + [1] * len(outside), torch.cat([entropy(inside), entropy(outside)]))


def calibration_of_simulated(probabilities, repeats=200):
    """Return the mean calibration error of labels that are drawn from the predictions."""
    labels = torch.distributions.Categorical(probabilities).sample((repeats,))
    return torch.stack([calibration_error(probabilities, each) for each in labels]).mean()


def report(probabilities, answers):
    """Print the scores of each method, without and with temperature scaling."""
    labels = answers["test images"]
    print("\n                        accuracy  confidence  log score  ECE, test  with noise   AUROC: turned  shuffled")
    for name, raw in probabilities.items():
        power, after = scaled(raw, answers["validation"])
        for title, values in ((name, raw), (f"  to the power {power:.2f}", after)):
            inside = values["test images"]
            turned, shuffled = (detection(inside, values[key]) for key in INPUTS[2:4])
            error, noisy = (calibration_error(values[key], labels) for key in INPUTS[:2])
            print(
                f"{title:23s} {(inside.argmax(-1) == labels).double().mean():9.3f} {inside.amax(-1).mean():11.3f} "
                f"{nn.functional.nll_loss(inside.log(), labels):10.3f} {error:10.3f} {noisy:11.3f} "
                f"{turned:15.3f} {shuffled:9.3f}"
            )
    simulated = calibration_of_simulated(probabilities["posterior"]["test images"])
    print(f"ECE of labels that are drawn from the predictions of the posterior: {simulated:.3f}")


def reliability(probabilities, labels, bins=8):
    """Return mean confidence and accuracy of groups of equal size, by confidence."""
    confidence, predicted = probabilities.max(-1)
    groups = confidence.argsort().tensor_split(bins)
    hits = (predicted == labels).double()
    return [confidence[group].mean() for group in groups], [hits[group].mean() for group in groups]


def figure_of_calibration(probabilities, answers):
    """Draw accuracy by confidence of the test images, without and with temperature scaling."""
    fig, axes = plt.subplots(1, 2, figsize=(10, 4.4), sharex=True, sharey=True)
    labels = answers["test images"]
    for ax, title in zip(axes, ("as predicted", "after temperature scaling"), strict=True):
        ax.plot([0, 1], [0, 1], color="0.8", lw=1)
        for name, values in probabilities.items():
            inside = (values if ax is axes[0] else scaled(values, answers["validation"])[1])["test images"]
            error = calibration_error(inside, labels)
            ax.plot(*reliability(inside, labels), "o-", ms=4, color=COLOURS[name], label=f"{name}, ECE {error:.3f}")
        ax.set(title=title, xlabel="confidence, mean of an eighth of the images", xlim=(0.2, 1.02), ylim=(0.2, 1.02))
        ax.legend(frameon=False, fontsize="small")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy")
    fig.tight_layout()
    return fig


def figure_of_entropies(probabilities):
    """Draw histograms of the entropy of predictions for test images and for images that are no upright digits."""
    fig, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True)
    bins = np.linspace(0, math.log(10), 24)
    for ax, name in zip(axes, ("one network", "ensemble of 5", "posterior"), strict=True):
        inside, turned, shuffled = (entropy(probabilities[name][INPUTS[k]]) for k in (0, 2, 3))
        ax.hist(inside, bins, density=True, color="0.75", label="test images")
        for values, colour, label in ((turned, "#D55E00", "turned by 90°"), (shuffled, "#0072B2", "pixels shuffled")):
            ax.hist(values, bins, density=True, histtype="step", lw=1.5, color=colour, label=label)
        ax.set(title=name, xlabel="entropy of the prediction (nats)")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("density")
    axes[1].legend(frameon=False, fontsize="small")
    fig.tight_layout()
    return fig


def main(argv=None):
    parser = gallery.options(__doc__, draws=150, warmup="as many")
    parser.add_argument("--images", type=int, default=200, help="number of images for training")
    parser.add_argument("--steps", type=int, default=1_000, help="of the networks trained by AdamW")
    parser.add_argument("--prior", choices=["inferred", "default"], default="inferred")
    arguments = gallery.begin(parser, argv, dtype=torch.float32)

    chosen = model if arguments.prior == "inferred" else default_model()
    images, labels, inputs, answers = load(arguments.images, raw=arguments.prior == "default")
    report_of_prior(chosen, inputs["test images"][:200])
    probabilities = classical(images, labels, inputs, arguments.steps)
    predictions, single, mcmc = posterior(chosen, images, labels, inputs, arguments.draws)
    probabilities["posterior"] = {name: each.mean for name, each in predictions.items()}
    inside = predictions["test images"]
    r_hat = inside.r_hat[inside.mean > 0.01]
    print(f"R-hat of the probabilities above 0.01: median {r_hat.median():.3f}, 95 % below {r_hat.quantile(0.95):.3f}")
    accuracy = single[:, 1:].gather(-1, answers["test images"][:, None]).mean()
    print(f"one draw of the posterior: accuracy {accuracy:.3f}, confidence {single[:, 0].mean():.3f}")
    report(probabilities, answers)
    first, second = figure_of_calibration(probabilities, answers), figure_of_entropies(probabilities)
    gallery.write(arguments.output, {"calibrated_network": first, "calibrated_network_entropy": second})
    return probabilities, answers, mcmc


if __name__ == "__main__":
    main()
