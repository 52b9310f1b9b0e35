"""Which rows the speed page has, in groups that compare like with like: the same problem, chains, warm-up and draws."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.measure import Setting
from benchmarks.problems.network import NETWORK

OURS = "pyro_manifold OHMC"
COMPILED = f"{OURS}, compiled"
NUMPYRO, IN_TURN, NUMPYRO_HMC = "NumPyro NUTS, vectorised", "NumPyro NUTS, sequential", "NumPyro HMC, vectorised"
NUTPIE, PYRO, MICI = "nutpie", "Pyro NUTS, jit_compile=True", "Mici constrained NUTS"
CONFIGURATIONS = {
    OURS: ("pyro_manifold", {}),
    COMPILED: ("pyro_manifold", {"jit_compile": True}),
    NUMPYRO: ("NumPyro", {}),
    IN_TURN: ("NumPyro", {"chain_method": "sequential"}),
    NUMPYRO_HMC: ("NumPyro", {"algorithm": "HMC"}),
    NUTPIE: ("nutpie", {}),
    PYRO: ("Pyro NUTS", {"jit_compile": True, "ignore_jit_warnings": True}),
    MICI: ("Mici", {}),
}
# Chains: warm-up and draws of each.
SIZES = {
    "mixture of the OHMC paper, V(2,2)": {4: (500, 2000), 64: (300, 500)},
    "mixture of the OHMC paper, V(3,2)": {4: (300, 700), 64: (300, 500), 512: (200, 200)},
    "Langevin V(10,3)": {4: (300, 700), 64: (300, 500), 512: (200, 200)},
    "Langevin V(50,5)": {4: (300, 700), 64: (300, 500)},
    NETWORK: {4: (400, 400)},
}
MIXTURES = tuple(name for name in SIZES if "Langevin" not in name and name != NETWORK)
HMC_PROBLEMS = ("mixture of the OHMC paper, V(3,2)", "Langevin V(10,3)")
REASONS_TO_BE_SMALL = {
    NUTPIE: "PyTensor has the closed form of two columns only",
    MICI: "its chains are loops in Python",
}
# Where two columns of the unconstrained matrix become dependent the polar factor is singular, and trajectories that
# pass there need tiny steps: with trees of 2¹⁰ steps, which never turn back, NUTS has a twentieth of the ESS a second.
DEPTH = 6
DEEP = {NUMPYRO, IN_TURN, NUTPIE, PYRO}
NOTES = {
    NETWORK: "The network has a metastable state, in which one column is free and the potential energy is 170 higher. "
    "Chains leave it after hundreds of trajectories, and the smallest ESS says little more than whether one is still "
    "there: the ratio is of the median.",
    **dict.fromkeys(
        MIXTURES,
        f"Trees of NumPyro's, nutpie's and Pyro's NUTS have at most 2^{DEPTH} steps here, which suits them best.",
    ),
}


class Group(NamedTuple):
    """Rows of one table.

    Attributes:
        title: its heading.
        settings: one for each row, equal in chains, warm-up and draws.
        absent: ``{peer: why it has no row}``.
        statistic: which effective size is compared, ``ess_min`` or ``ess_median``.
    """

    title: str
    settings: list[Setting]
    absent: dict[str, str]
    statistic: str


def groups(name, sizes=None):
    """The tables of a problem; ``sizes`` in place of its own, as ``{chains: (warm-up, draws)}``."""
    return [group(name, chains, *lengths) for chains, lengths in (sizes or SIZES[name]).items()]


def group(name, chains, warmup, draws):
    kind = "Like with like" if chains <= 64 else "Many chains"
    absent = {peer: why for peer in CONFIGURATIONS if (why := absence(peer, name, chains))}
    settings = []
    for row, (peer, options) in CONFIGURATIONS.items():
        if row not in absent:
            depth = {"max_tree_depth": DEPTH} if row in DEEP and name in MIXTURES else {}
            settings.append(Setting(row, peer, chains, warmup, draws, options | depth))
    title = f"{kind}: {chains} chains × ({warmup} + {draws})"
    return Group(title, settings, absent, "ess_median" if name == NETWORK else "ess_min")


def absence(peer, name, chains):
    """Why a peer has no row, or None."""
    if name not in MIXTURES and peer in REASONS_TO_BE_SMALL:
        return f"for small problems: {REASONS_TO_BE_SMALL[peer]}"
    if "V(2,2)" in name and peer == MICI:
        return "its dynamics never change the sign of a determinant"
    if "V(2,2)" in name and peer == PYRO:
        return f"a step takes about a millisecond and nearly every tree 2^{DEPTH}: ten minutes or more"
    if name not in MIXTURES and peer == PYRO:
        return "minutes, at a millisecond a step; on the mixture above it has a hundredth of the rate of the others"
    if chains > 4 and peer in (PYRO, MICI, IN_TURN):
        return f"one chain after the other: {chains // 4} times the seconds of 4 chains, the same rate once compiled"
    if chains > 64 and peer == NUTPIE:
        return "one chain after the other: about the rate of its 64 chains once compiled"
    if peer == NUMPYRO_HMC and not (chains == 4 and name in HMC_PROBLEMS):
        return "beside its NUTS with 4 chains on the smaller problems"
    return None
