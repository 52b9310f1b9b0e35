"""Sentences of the documentation that are made of its tables."""

from statistics import fmean, median

from .tables import largest, number, rounded, rows, word

LENGTHS = "docs/benchmarks/lengths.md"
RATES = "docs/benchmarks/rates.md"
PUBLISHED, MSD = "docs/benchmarks/published.md", "docs/benchmarks/msd.md"
WHOLE, COMPILED = "whole-runs-compiling-included-4-chains-500-500", "once-everything-is-compiled-4-chains-500-500"
MODELS = 14


def of_package(anchor, package):
    return [row for row in rows(PUBLISHED, anchor) if row.get("package", "").startswith(package) and "model" in row]


def ahead(anchor, package, measure="ESS/s"):
    """Return the number of models on which this package has the higher rate."""
    summary = [row for row in rows(PUBLISHED, anchor) if (row.get("package"), row.get("of")) == (package, measure)]
    return int(number(summary[0]["ours ahead"]))


def behind(package):
    return MODELS - ahead(COMPILED, package)


def unconverged(package):
    return sum(largest(row["R-hat"]) > 1.01 for row in of_package(WHOLE, package))


def rate_on_seeds(package):
    """Return how many times our rate a package has on the seeds, once everything is compiled."""
    ratios = {row["model"]: number(row["ours / theirs"]) for row in of_package(COMPILED, package)}
    return word(round(1 / ratios["seeds"]))


def r_hats(package):
    """Largest R-hat of the three models with effects whose scale may vanish."""
    models = ("item response, two parameters", "eight schools, centred", "seeds")
    found = {row["model"]: largest(row["R-hat"]) for row in of_package(WHOLE, package)}
    return [rounded(found[model], 2) for model in models]


def seconds(*packages):
    found = [number(row["CPU seconds"]) for package in packages for row in of_package(WHOLE, package)]
    return f"{min(found)} to {max(found)}"


def share_of_the_best(column):
    return [
        float(share)
        for row in rows(LENGTHS, "chosen-trajectory-lengths")
        for share in row.get(column, "").split()
        if row.get("chains", "").isdigit()
    ]


def collinear(sampler, chains=""):
    """Rows of a sampler on the logistic posterior that is long and thin, with so many chains."""
    return [
        row
        for row in rows(MSD, "collinear-logistic")
        if row["peer"].startswith(sampler) and row["chains × (warm-up + draws)"].startswith(chains)
    ]


def smallest_rate(row):
    return min(number(row["min ESS/s"]), number(row["squares' ESS/s"]))


def dense_masses_over_msd():
    best = {name: max(map(smallest_rate, collinear(f"pyro_manifold {name}"))) for name in ("MSD", "OHMC")}
    return round(best["OHMC"] / best["MSD"])


def cpu_ratios(sampler, chains=""):
    return [number(row["ratio, CPU s"]) for row in collinear(sampler, chains)]


def least_rates(kernel):
    found = rows("docs/reproduction.md", "toy-densities")
    return [number(row["least ESS/s"]) for row in found if row.get("kernel") == kernel and number(row["least ESS/s"])]


def ghmc_over_ohmc():
    ratios = [one / other for one, other in zip(least_rates("GHMC"), least_rates("OHMC"), strict=True)]
    return f"{rounded(min(ratios), 1)} to {rounded(max(ratios), 1)}"


def ohmc_over_slices():
    found = rows("docs/understand/geodesic_slice.md", "where-it-wins-and-where-it-loses")
    rates = {row[" 2"]: number(row["for each CPU s"]) for row in found if row[""] == "one mode, 10 dimensions"}
    return round(rates["OHMC"] / rates["GeodesicSlice"], -2)


def exchange_over_smc():
    found = rows("docs/understand/many_modes.md", "which-of-the-two")
    times = [number(row["processor s"]) for row in found]
    cheap = [replicas / smc for smc, replicas in zip(times[0:4:2], times[1:4:2], strict=True)]
    return f"{word(round(min(cheap)))} to {word(round(max(cheap)))}"


def steps_of_low_rank_guides():
    ratios = [
        number(row["Pyro / here"])
        for row in rows("docs/understand/svi.md", "steps-a-second")
        if row["guide"] == "Stiefel"
    ]
    return f"{rounded(min(ratios))} to {rounded(max(ratios))}"


def curved_error():
    rows_of_steps = rows(MSD, "curved-q12-targetposterior-0489-by-quadrature")
    step = next(row for row in rows_of_steps if row["ε"] == "0.2")
    return f"{step['adjusted accepts']} where the second moment is {100 * (number(step['q₁²']) / 0.489 - 1):.0f} %"


PROBLEMS = {
    "mixture with 16 modes, V(3,2)": "mixture-of-the-ohmc-paper-v32-4-chains",
    "matrix Langevin, V(10,3)": "langevin-v103-4-chains",
    "matrix Langevin, V(50,5)": "langevin-v505-4-chains",
    "20 matrices V(5,2) in a plate, 1,000 + 1,000": "20-matrices-v52-in-a-plate-4-chains",
    "Bayesian PCA 200×50, rank 5, 1,000 + 1,000": "bayesian-pca-20050-rank-5-4-chains",
}


def against_numpyro(anchor):
    """The smallest ratio to a sampler of NumPyro: of whole runs, and once everything is compiled."""
    found = [row for row in rows(RATES, anchor) if row["sampler"].startswith("NumPyro") and row["ratio"]]
    return [min(number(row[column]) for row in found) for column in ("ratio", "ratio 2")]


def readme_problems():
    """Figures of each row of README's table from the tables of the benchmarks; the last two are of long runs."""
    found = {}
    for problem, anchor in PROBLEMS.items():
        lengths = ("1000-1000",) if "1,000" in problem else ("500-500", "500-10000")
        found[problem] = [ratio for n in lengths for ratio in against_numpyro(f"{anchor}-{n}-iterations")]
    return found


def readme_problems_behind():
    return sum(found[1] < 1 for found in readme_problems().values())


def drift(matrix):
    """Return the times of a drift, by those of its operations at the rate of products: in float32 and in float64."""
    return [
        row["ratio"] for row in rows("docs/understand/ohmc.md", "operations-of-a-drift") if row.get("matrix") == matrix
    ]


DERIVED = {
    "README.md": (
        lambda: f"on {word(behind('NumPyro'))} of the {MODELS} models",
        lambda: f"ahead on {word(readme_problems_behind())} problem of {word(len(readme_problems()))} above",
    ),
    "docs/limits.md": (
        lambda: f"higher rate on [{word(behind('NumPyro'))} of {MODELS} published models]",
        lambda: f"and nutpie's on {word(behind('nutpie'))}.",
        lambda: f"reaches {min(r_hats('pyro_manifold'))} to {max(r_hats('pyro_manifold'))}]",
        lambda: f"{100 * fmean(share < 0.6 for share in share_of_the_best('of the best')):.0f} % of the choices",
    ),
    "docs/which_kernel.md": (
        lambda: f"[{ghmc_over_ohmc()} times the effective draws a second",
        lambda: f"[{dense_masses_over_msd()} times its rate]",
        lambda: f"[{ohmc_over_slices():.0f} times the effective draws]",
        lambda: f"[{exchange_over_smc()} times faster]",
    ),
    PUBLISHED: (
        lambda: (
            f"on {word(unconverged('pyro_manifold'))} of the fourteen models. With one seed, NumPyro's is on "
            f"{word(unconverged('NumPyro'))} and nutpie's on {word(unconverged('nutpie'))}."
        ),
        lambda: (
            "reaches {} on item response with two parameters, {} on eight schools, centred, and {} on seeds. "
            "NumPyro has {}, {} and {} there, nutpie {}, {} and {}.".format(
                *r_hats("pyro_manifold"), *r_hats("NumPyro"), *r_hats("nutpie")
            )
        ),
        lambda: (
            f"NumPyro has the higher rate on {word(behind('NumPyro'))} models of fourteen and nutpie on "
            f"{word(behind('nutpie'))}."
        ),
        lambda: f"seeds, where both have {rate_on_seeds('NumPyro')} times our rate",
        lambda: f"seeds, where both have {rate_on_seeds('nutpie')} times our rate",
        lambda: (
            f"take {seconds('pyro_manifold')} CPU seconds in all with this package. NumPyro and nutpie take "
            f"{seconds('NumPyro', 'nutpie')},"
        ),
        lambda: "on {} models of fourteen than NumPyro, and on {} than nutpie.".format(
            *(word(ahead(WHOLE, name, "ESS per gradient")) for name in ("NumPyro", "nutpie"))
        ),
    ),
    MSD: (
        lambda: (
            "in CPU seconds {:.1f} times NumPyro's best on the logistic posterior with 64 chains; {:.2f} with one, "
            "{:.2f} with 512;".format(*(cpu_ratios("pyro_manifold MSD adjusted", f"{n} ×")[0] for n in (64, 1, 512)))
        ),
        lambda: "with a dense mass {:.0f} to {:.0f} times |".format(
            *(choose(cpu_ratios("pyro_manifold OHMC")) for choose in (min, max))
        ),
        lambda: f"has {dense_masses_over_msd()} times the rate of MSD's best run.",
        lambda: (
            "adjusted MSD with 64 chains has {:.1f} times the effective draws of NumPyro's best (a dense mass, 64 "
            "chains), {:.1f} times with 512 chains and {:.2f} times with one.".format(
                *(cpu_ratios("pyro_manifold MSD adjusted", f"{n} ×")[0] for n in (64, 512, 1))
            )
        ),
        curved_error,
    ),
    "docs/understand/many_modes.md": (lambda: f"by a factor of {exchange_over_smc()} on cheap models",),
    "docs/understand/low_rank_guides.md": (lambda: f"[{steps_of_low_rank_guides()} times as fast]",),
    "docs/understand/ohmc.md": (
        lambda: (
            f"median of {len(share_of_the_best('of the best'))} choices is "
            f"{median(share_of_the_best('of the best')):.2f} of the best per unit of time and "
            f"{median(share_of_the_best('a gradient')):.2f} per gradient"
        ),
        lambda: f"{100 * fmean(share < 0.6 for share in share_of_the_best('of the best')):.0f} % of the choices",
        lambda: (
            "V(784,300) takes {} times what its operations take at the rate of products in float32 and {} times in "
            "float64, one of V(300,300) {} and {} times".format(*drift("V(784,300)"), *drift("V(300,300)"))
        ),
    ),
}
"""Sentences that are made of tables, by the page on which they stand."""
