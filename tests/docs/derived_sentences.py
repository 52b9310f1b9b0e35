"""Sentences of the documentation that are made of its tables."""

from statistics import fmean, median

from .tables import largest, number, rounded, rows, word

RATES, PUBLISHED, KERNELS, OPTIMISERS, LENGTHS, MSD = (
    f"docs/benchmarks/{name}.md" for name in ("rates", "published", "kernels", "optimisers", "lengths", "msd")
)
WHOLE, COMPILED = "whole-runs-compiling-included-4-chains-500-500", "once-everything-is-compiled-4-chains-500-500"
MODELS = 14


def of_package(anchor, package):
    return [row for row in rows(PUBLISHED, anchor) if row.get("package", "").startswith(package) and "model" in row]


def ahead(anchor, package, measure="ESS/s"):
    """Return the number of models on which this package has the higher rate."""
    summary = [row for row in rows(PUBLISHED, anchor) if (row.get("package"), row.get("of")) == (package, measure)]
    return int(number(summary[0]["ours ahead"]))


def mean_ratio(anchor, package, digits):
    """Return the geometric mean of the ratios of rates, as the summary of a table has it."""
    summary = [row for row in rows(PUBLISHED, anchor) if (row.get("package"), row.get("of")) == (package, "ESS/s")]
    return rounded(number(summary[0]["geometric mean of ratios"]), digits)


def behind(package):
    return MODELS - ahead(COMPILED, package)


def whole_runs():
    assert ahead(WHOLE, "NumPyro") == ahead(WHOLE, "nutpie") == MODELS
    return (
        f"the higher rate on all fourteen models, {mean_ratio(WHOLE, 'NumPyro', 1)} times that of NumPyro and "
        f"{mean_ratio(WHOLE, 'nutpie', 0)} times that of nutpie in the geometric mean"
    )


def unconverged(package):
    return sum(largest(row["R-hat"]) > 1.01 for row in of_package(WHOLE, package))


def r_hats(package):
    """Largest R-hat of the three models with effects whose scale may vanish."""
    models = ("item response, two parameters", "eight schools, centred", "seeds")
    found = {row["model"]: largest(row["R-hat"]) for row in of_package(WHOLE, package)}
    return [rounded(found[model], 2) for model in models]


def seconds(*packages):
    found = [number(row["CPU seconds"]) for package in packages for row in of_package(WHOLE, package)]
    return f"{min(found)} to {max(found)}"


def choices():
    """Rows of the posteriors by which chosen trajectory lengths are judged."""
    return [row for row in rows(LENGTHS) if row.get("chains", "").isdigit()]


def share_of_the_best(column):
    return [float(share) for row in choices() for share in row[column].split()]


def poor_choices():
    """Number of posteriors of which a chosen length has less than 0.6 of the best rate."""
    return len({row["posterior"] for row in choices() if min(map(float, row["of the best"].split())) < 0.6})


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


LONG_RUNS = ("mixture-of-the-ohmc-paper-v22", "mixture-of-the-ohmc-paper-v32", "langevin-v103", "langevin-v505")
"""Problems that have short and long runs, and runs with 64 chains."""


def against(package, anchor):
    """The smallest ratio to a sampler of a package: of whole runs, and once everything is compiled."""
    found = [row for row in rows(RATES, anchor) if row["sampler"].startswith(package) and row["ratio"]]
    return [min(number(row[column]) for row in found) for column in ("ratio", "ratio 2")]


def four_chains():
    """Anchors of all tables with four chains."""
    larger = [PROBLEMS[problem] + "-1000-1000-iterations" for problem in PROBLEMS if "1,000" in problem]
    return [f"{name}-4-chains-500-{draws}-iterations" for name in LONG_RUNS for draws in (500, 10000)] + larger


def many_chains():
    return [f"{name}-64-chains-300-500-iterations" for name in LONG_RUNS]


def two_digits(number):
    return f"{number:.2g}" if number < 100 else f"{number:.0f}"


def span(values):
    return f"{two_digits(min(values))} to {two_digits(max(values))}"


def rates_of_four_chains():
    whole, compiled = zip(*(against("NumPyro", anchor) for anchor in four_chains()), strict=True)
    (lost,) = [ratio for ratio in compiled if ratio < 1]
    assert lost == against("NumPyro", "langevin-v103-4-chains-500-500-iterations")[1]
    return (
        f"has {span(whole)} times the effective draws a second of NumPyro's best sampler, on all six problems; most of "
        f"this is compilation. Without compiling it has {span([ratio for ratio in compiled if ratio > 1])} times, but "
        f"**loses on Langevin V(10,3) with 500 draws a chain**, where the ratio is {two_digits(lost)}."
    )


def rates_of_many_chains():
    whole, compiled = zip(*(against("NumPyro", anchor) for anchor in many_chains()), strict=True)
    return f"it has {span(whole)} times in whole runs and {span(compiled)} times without compiling."


def rates_of_nutpie():
    anchors = [anchor for anchor in (*four_chains(), *many_chains()) if anchor.startswith("mixture")]
    whole, compiled = zip(*(against("nutpie", anchor) for anchor in anchors), strict=True)
    return (
        f"has a lower rate in each table, by {span(whole)} times in whole runs and {span(compiled)} times without "
        "compiling."
    )


def native_ratios():
    return [number(row["ratio"]) for row in rows(KERNELS, "an-iteration-of-every-kernel")]


def against_geoopt(method):
    found = [number(row["ratio"]) for row in rows(OPTIMISERS) if row["method"] == f"pyro_manifold, {method}"]
    return f"{min(found):.2f} to {max(found):.2f}"


def readme_problems():
    """Figures of each row of README's table from the tables of the benchmarks; the last two are of long runs."""
    found = {}
    for problem, anchor in PROBLEMS.items():
        lengths = ("1000-1000",) if "1,000" in problem else ("500-500", "500-10000")
        found[problem] = [ratio for n in lengths for ratio in against("NumPyro", f"{anchor}-{n}-iterations")]
    return found


def readme_problems_behind():
    return sum(found[1] < 1 for found in readme_problems().values())


def drift(matrix):
    """Return the times of a drift, by those of its operations at the rate of products: in float32 and in float64."""
    return [
        row["ratio"] for row in rows("docs/understand/ohmc.md", "operations-of-a-drift") if row.get("matrix") == matrix
    ]


def centring_above(form, bound):
    """R-hats of the posteriors with coordinates to choose that are above a bound in a form, as the table has them."""
    found = [row[form].rpartition(", ")[2] for row in rows("docs/understand/ohmc.md", "coordinates-of-hierarchies")]
    return [text for text in found if float(text) > bound]


def least_and_largest(texts):
    return min(texts, key=float), max(texts, key=float)


def centring_by_the_better():
    """Effective draws of the chosen form by those of the better of the other two, least and largest."""
    table = rows("docs/understand/ohmc.md", "coordinates-of-hierarchies")
    better = [max(number(row["as written"]), number(row["not centred, by hand"])) for row in table]
    found = [number(row["chosen"]) / size for row, size in zip(table, better, strict=True)]
    return f"{min(found):.2f} to {max(found):.1f}"


DERIVED = {
    "README.md": (
        lambda: f"on {word(behind('NumPyro'))} of the {MODELS} models",
        lambda: f"ahead on {word(readme_problems_behind())} problem of {word(len(readme_problems()))} above",
    ),
    "docs/limits.md": (
        lambda: f"higher rate on [{word(behind('NumPyro'))} of {MODELS} published models]",
        lambda: f"and nutpie's on {word(behind('nutpie'))}.",
        lambda: (
            f"is still {min(centring_above('chosen', 1.01))} to {max(centring_above('chosen', 1.01))} with some seed"
        ),
        lambda: f"{100 * fmean(share < 0.6 for share in share_of_the_best('of the best')):.0f} % of the choices",
    ),
    "docs/which_kernel.md": (
        lambda: f"[{ghmc_over_ohmc()} times the effective draws a second",
        lambda: f"[{dense_masses_over_msd()} times its rate]",
        lambda: f"[{ohmc_over_slices():.0f} times the effective draws]",
        lambda: f"[{exchange_over_smc()} times faster]",
    ),
    RATES: (rates_of_four_chains, rates_of_many_chains, rates_of_nutpie),
    KERNELS: (lambda: f"takes less processor time by {span(native_ratios())} times",),
    OPTIMISERS: (
        lambda: f"before geoopt's faster geometry does, by {against_geoopt('SGD')} times.",
        lambda: f"with ratios of {against_geoopt('Adam')}:",
    ),
    LENGTHS: (
        lambda: (
            f"median of {len(share_of_the_best('of the best'))} choices is "
            f"{median(share_of_the_best('of the best')):.2f} of the best fixed length per unit of time and "
            f"{median(share_of_the_best('a gradient')):.2f} per gradient."
        ),
        lambda: (
            f"{100 * fmean(share < 0.6 for share in share_of_the_best('of the best')):.0f} % of the choices are below "
            f"0.6 in time**, on {poor_choices()} of the posteriors with some seed"
        ),
    ),
    PUBLISHED: (
        whole_runs,
        lambda: (
            f"NumPyro is ahead on {word(behind('NumPyro'))} of the fourteen models and nutpie on "
            f"{word(behind('nutpie'))}**; the geometric means are {mean_ratio(COMPILED, 'NumPyro', 1)} and "
            f"{mean_ratio(COMPILED, 'nutpie', 1)}."
        ),
        lambda: f"**Chains disagree at the defaults** on {word(unconverged('pyro_manifold'))} of the fourteen,",
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
        curved_error,
    ),
    "docs/understand/many_modes.md": (lambda: f"by a factor of {exchange_over_smc()} on cheap models",),
    "docs/understand/low_rank_guides.md": (lambda: f"[{steps_of_low_rank_guides()} times as fast]",),
    "docs/understand/ohmc.md": (
        lambda: (
            f"exceeds 1.05 on {word(len(centring_above('as written', 1.05)))} of the ten posteriors as written, on "
            f"{word(len(centring_above('not centred, by hand', 1.05)))} not centred, and on none as chosen."
        ),
        lambda: f"The chosen form has {centring_by_the_better()} times the effective draws of the better of the two.",
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
