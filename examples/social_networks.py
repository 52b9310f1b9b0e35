"""Eigenmodels of two networks: Zachary's karate club and the characters of Les Misérables.

Pairs of nodes are linked with log odds μ + Σ_k λ_k u_ik u_jk, U uniform on the Stiefel manifold V(n, rank): nodes with
similar rows of U are linked more often if λ_k > 0, and less often if λ_k < 0 (Hoff's eigenmodel).

    python -m examples.social_networks --output results

prints the summaries, the clubs of the members beside those of NetworkX, the evidence of 0 to 4 dimensions and how well
held-out pairs are predicted, and writes two pictures.
"""

import warnings

import matplotlib

matplotlib.use("Agg")
warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)

import matplotlib.pyplot as plt
import networkx
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from matplotlib.collections import LineCollection
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke
from sklearn.metrics import roc_auc_score

from examples import datasets, gallery
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC, compare_evidence

PREDICTORS = ("resource_allocation_index", "adamic_adar_index", "preferential_attachment")  # of NetworkX


def model(pairs, linked, nodes, rank, width=2.0):
    logits = pyro.sample("intercept", dist.Normal(0.0, 3.0))[..., None]
    if rank:
        U = pyro.sample("U", StiefelUniform(nodes, rank))
        values = pyro.sample("values", dist.Normal(0.0, width * nodes**0.5).expand([rank]).to_event(1))
        first, second = U[..., pairs[0], :], U[..., pairs[1], :]
        logits = logits + (first * values[..., None, :] * second).sum(-1)
    with pyro.plate("pairs", len(linked)):
        pyro.sample("linked", dist.Bernoulli(logits=logits), obs=linked)


def load(name):
    """Return all pairs ``(2, pairs)``, those linked ``(pairs,)``, the links ``(nodes, nodes)`` and names."""
    links, names = datasets.network(name)
    pairs = torch.triu_indices(len(links), len(links), 1)
    return pairs, torch.as_tensor(links)[pairs[0], pairs[1]], links, names


def fit(pairs, linked, nodes, rank, draws, **options):
    mcmc = MCMC(OHMC(model), draws, draws // 2, num_chains=4, disable_progbar=True, **options)
    mcmc.run(pairs, linked, nodes, rank)
    return mcmc


def held_out(name, ranks, draws, folds=5):
    """Return the areas under the ROC curve of held-out pairs: the mean over folds, by method."""
    pairs, linked, links, _ = load(name)
    fold, areas = torch.randperm(len(linked)) % folds, {}
    for k in range(folds):
        seen, hidden = fold != k, pairs[:, fold == k]
        kept = np.zeros_like(links)
        kept[tuple(pairs[:, seen])] = linked[seen]
        graph = networkx.from_numpy_array(kept + kept.T)
        scores = {key: [score for *_, score in getattr(networkx, key)(graph, hidden.T.tolist())] for key in PREDICTORS}
        for rank in ranks:
            found = fit(pairs[:, seen], linked[seen], len(links), rank, draws).get_samples()
            logits = torch.einsum("snk,sk,snk->sn", found["U"][:, hidden[0]], found["values"], found["U"][:, hidden[1]])
            scores[f"eigenmodel, rank {rank}"] = (logits + found["intercept"][:, None]).sigmoid().mean(0)
        for key, values in scores.items():
            areas.setdefault(key.replace("_", " "), []).append(roc_auc_score(linked[fold == k], values))
    return {key: float(np.mean(values)) for key, values in areas.items()}


def report_clubs(draws, links, clubs):
    """Print who is on the side of member 0: by the column of the largest λ, and by two methods of NetworkX."""
    axis, graph = draws["U"][..., draws["values"].mean((0, 1)).argmax()], networkx.from_numpy_array(links)
    probability = (axis * axis[..., :1] > 0).double().mean((0, 1)).numpy()
    fiedler = networkx.fiedler_vector(graph, seed=0)
    groups = networkx.community.greedy_modularity_communities(graph, cutoff=2, best_n=2)
    with_first = np.isin(np.arange(len(links)), list(next(group for group in groups if 0 in group)))
    found = {"eigenmodel": probability > 0.5, "Fiedler": fiedler * fiedler[0] > 0, "greedy modularity": with_first}
    for method, side in found.items():
        print(f"{method:18s} not in their club: members {np.flatnonzero(side != clubs).tolist()}")
    uncertain = ", ".join(f"{k}: {each:.2f}" for k, each in enumerate(probability) if 0.1 < each < 0.9)
    print(f"probability of the side of member 0, where it is between 0.1 and 0.9:\n{uncertain}")


def plot_positions(ax, positions, links, labels, groups):
    """Plot mean positions of nodes over their links, with an ellipse for each that holds half of its draws.

    Args:
        ax: axes to draw on.
        positions: aligned draws ``(draws, nodes, 2)``.
        links: ``(nodes, nodes)``, symmetric.
        labels: names of the nodes, those of linked ones written on the side without links; an empty one is left out.
        groups: ``{name: (nodes,)}``, which nodes are in the group, in a colour of its own.
    """
    centres = positions.mean(0)
    ax.add_collection(LineCollection(centres[np.argwhere(np.triu(links))], colors="0.55", linewidths=0.6, zorder=1.5))
    for (group, inside), colour in zip(groups.items(), ("#0072B2", "#D55E00"), strict=False):
        for k in np.flatnonzero(inside):
            variances, axes = np.linalg.eigh(np.cov(positions[:, k].T))
            distances = np.linalg.norm((positions[:, k] - centres[k]) @ axes / variances**0.5, axis=1)
            width, height = 2 * np.median(distances) * variances**0.5
            style = {"facecolor": (colour, 0.04), "edgecolor": (colour, 0.35), "linewidth": 0.7}
            ax.add_patch(Ellipse(centres[k], width, height, angle=np.degrees(np.arctan2(*axes[::-1, 0])), **style))
        ax.scatter(*centres[inside].T, s=16, color=colour, linewidths=0, label=group, zorder=2)
    for k in np.flatnonzero(labels):
        away = centres[k] - centres[links[k] > 0].mean(0)
        away /= np.linalg.norm(away)
        x, y = (0 if abs(part) < 0.4 else int(np.sign(part)) for part in away)
        place = {"ha": ("center", "left", "right")[x], "va": ("center", "bottom", "top")[y]}
        text = ax.annotate(labels[k], centres[k], 5 * away, textcoords="offset points", fontsize="small", **place)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    ax.set_aspect("equal")
    ax.spines[["top", "right"]].set_visible(False)
    options = {"title": "each ellipse: 50 % of the draws", "title_fontsize": "small", "handletextpad": 0.1}
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, **options)


def figures(fits, clubs, table, areas):
    first, axes = plt.subplots(1, 2, figsize=(12, 6))
    for ax, (name, (draws, links, names)) in zip(axes, fits.items(), strict=True):
        values = draws["values"].mean((0, 1))
        columns = values.abs().argsort(descending=True)[:2].tolist()
        labels = [str(names[k]) if k in links.sum(0).argsort()[-7:] else "" for k in range(len(names))]  # most links
        groups = {"Mr. Hi's club": clubs, "Officer's club": ~clubs}
        if name != "karate club":
            groups = {"characters": np.full(len(names), True)}
        plot_positions(ax, draws["U"][..., columns].flatten(0, 1).numpy(), links, labels, groups)
        shown = " and ".join(f"{values[column]:.0f}".replace("-", "−") for column in columns)
        ax.set_title(f"{name}: λ = {shown}")
        ax.set(xlabel=f"position, column {columns[0] + 1}", ylabel=f"position, column {columns[1] + 1}")
    second, axes = plt.subplots(1, 1 + len(areas), figsize=(12, 3.2))
    axes[0].errorbar(table.index, table.log_evidence, table.se, fmt="o-", color="#0072B2", capsize=3)
    axes[0].set(xlabel="dimensions", ylabel="log evidence", title="karate club", xticks=table.index)
    for ax, (name, found) in zip(axes[1:], areas.items(), strict=True):
        ax.barh(list(found), list(found.values()), color=["0.6"] * 3 + ["#0072B2"] * (len(found) - 3))
        ax.set(xlim=(0.5, 1), xlabel="area under the ROC curve", title=f"{name}: held-out pairs")
        ax.invert_yaxis()
    for each in (first, second):
        each.tight_layout()
    return first, second


def main(argv=None):
    parser = gallery.options(__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[0, 1, 2, 3, 4], help="to compare")
    parser.add_argument("--particles", type=int, default=1_024)
    arguments = gallery.begin(parser, argv)

    fits = {}
    for name, rank, options in (("karate club", 2, {"tempering": True}), ("Les Misérables", 3, {})):
        pairs, linked, links, names = load(name)
        mcmc = fit(pairs, linked, len(links), rank, arguments.draws, **options)
        mcmc.summary(max_rows=5)
        fits[name] = (mcmc.get_samples(group_by_chain=True, align=True), links, names)
    clubs = np.array([club == "Mr. Hi" for _, club in networkx.karate_club_graph().nodes(data="club")])
    report_clubs(*fits["karate club"][:2], clubs)
    areas = {name: held_out(name, arguments.ranks[1:], arguments.draws // 4) for name in fits}
    print("\narea under the ROC curve of held-out pairs, karate club and Les Misérables")
    for method, area in areas["karate club"].items():
        print(f"{method:26s} {area:.2f} {areas['Les Misérables'][method]:.2f}")

    def run(model):
        return SMC(OHMC(model), num_particles=arguments.particles, disable_progbar=True)

    pyro.set_rng_seed(0)  # the evidence does not depend on the number of draws
    pairs, linked, links, _ = load("karate club")
    table = compare_evidence(model, pairs, linked, len(links), over={"rank": arguments.ranks}, smc=run)
    widths = compare_evidence(model, pairs, linked, len(links), 2, over={"width": [0.5, 1, 2, 4]}, smc=run)
    print(f"\n{table.round(2)}\n\n{widths.round(2)}")
    first, second = figures(fits, clubs, table, areas)
    gallery.write(arguments.output, {"social_networks": first, "social_networks_prediction": second})
    return fits, table, areas


if __name__ == "__main__":
    main()
