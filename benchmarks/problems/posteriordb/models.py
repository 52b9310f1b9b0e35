"""The models of posteriordb's posteriors with reference draws, by their names there: functions of a language and data.

Written after the Stan programs of https://github.com/stan-dev/posteriordb (BSD-3-Clause): the same densities, with
the names of their parameters. Where Stan solves an ordinary differential equation adaptively, these take fixed steps
of the classical Runge–Kutta method.
"""

import numpy as np

STEPS_OF_AN_INTERVAL = 8
"""Of the Runge–Kutta method between two observations."""

# ---- linear regressions: response, columns, and the prior of the residual's scale ----------------------------------


def _of(*names, response, function=None):
    """Columns of data by name, all of them and the response after a function, such as the logarithm."""

    def columns(data):
        change = function or (lambda x: x)
        return change(data[response]), [change(data[name]) for name in names]

    return columns


def _standardised(x, deviations=1):
    return (x - x.mean()) / (deviations * x.std(ddof=1))


def _with_product(response, first, second):
    """Two columns and their product, and a response, each a function of the data."""

    def columns(data):
        x, z = first(data), second(data)
        return response(data), [x, z, x * z]

    return columns


def _kid(data):
    return data["kid_score"]


def _earnings(data):
    return np.log(data["earn"])


def _volumes(*names):
    """Logarithms of the sizes of mesquite bushes, by name."""

    def columns(data):
        log = {name: np.log(x) for name, x in data.items() if name not in ("N", "group")}
        log["area"] = log["diam1"] + log["diam2"]
        log["volume"] = log["area"] + log["canopy_height"]
        log["shape"] = log["diam1"] - log["diam2"]
        return log["weight"], [data["group"] if name == "group" else log[name] for name in names]

    return columns


def _elections(data):
    ages = [1.0 * (data["age_discrete"] == k) for k in (2, 3, 4)]
    first, last = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    return data["partyid7"], [*(data[name] for name in first), *ages, *(data[name] for name in last)]


_SIZES = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
REGRESSIONS = {
    "earn_height": _of("height", response="earn"),
    "log10earn_height": lambda data: (np.log10(data["earn"]), [data["height"]]),
    "logearn_height": lambda data: (_earnings(data), [data["height"]]),
    "logearn_height_male": lambda data: (_earnings(data), [data["height"], data["male"]]),
    "logearn_logheight_male": lambda data: (_earnings(data), [np.log(data["height"]), data["male"]]),
    "logearn_interaction": _with_product(_earnings, lambda data: data["height"], lambda data: data["male"]),
    "logearn_interaction_z": _with_product(
        _earnings, lambda data: _standardised(data["height"]), lambda data: data["male"]
    ),
    "kidscore_interaction_c": _with_product(
        _kid, lambda data: data["mom_hs"] - data["mom_hs"].mean(), lambda data: data["mom_iq"] - data["mom_iq"].mean()
    ),
    "kidscore_interaction_c2": _with_product(
        _kid, lambda data: data["mom_hs"] - 0.5, lambda data: data["mom_iq"] - 100
    ),
    "kidscore_interaction_z": _with_product(
        _kid, lambda data: _standardised(data["mom_hs"], 2), lambda data: _standardised(data["mom_iq"], 2)
    ),
    "kidscore_mom_work": lambda data: (_kid(data), [1.0 * (data["mom_work"] == k) for k in (2, 3, 4)]),
    "mesquite": _of(*_SIZES, response="weight"),
    "logmesquite": _volumes(*_SIZES),
    "logmesquite_logva": _volumes("volume", "area", "group"),
    "logmesquite_logvas": _volumes("volume", "area", "shape", "total_height", "density", "group"),
    "logmesquite_logvash": _volumes("volume", "area", "shape", "total_height", "group"),
    "logmesquite_logvolume": _volumes("volume"),
    "nes": _elections,
}
"""With flat priors."""
REGRESSIONS_WITH_A_PRIOR = {
    "kidscore_momhs": _of("mom_hs", response="kid_score"),
    "kidscore_momiq": _of("mom_iq", response="kid_score"),
    "kidscore_momhsiq": _of("mom_hs", "mom_iq", response="kid_score"),
    "kidscore_interaction": _with_product(_kid, lambda data: data["mom_hs"], lambda data: data["mom_iq"]),
}
"""With a half-Cauchy prior of scale 2.5 for the scale of the residuals."""


def regression(columns, scale=None):
    def model(language, data):
        response, found = columns(data)
        design = language.array(np.column_stack([np.ones(len(response)), *found]))
        beta = language.flat("beta", design.shape[1] if isinstance(design.shape, tuple) else len(found) + 1)
        positive = {"support": "positive"}
        sigma = language.flat("sigma", **positive) if scale is None else language.draw("sigma", "HalfCauchy", scale)
        language.observe("y", "Normal", design @ beta, sigma, of=language.array(response))

    return model


def diamonds(language, data):
    design = data["X"][:, 1:] - data["X"][:, 1:].mean(0)
    b = language.draw("b", "Normal", 0.0, 1.0, size=design.shape[1])
    intercept = language.draw("Intercept", "StudentT", 3.0, 8.0, 10.0)
    sigma = language.flat("sigma", support="positive")
    language.factor("half t", language.log_density("StudentT", 3.0, 0.0, 10.0, of=sigma))
    language.observe("Y", "Normal", language.array(design) @ b + intercept, sigma, of=language.array(data["Y"]))


def blr(language, data):
    beta = language.draw("beta", "Normal", 0.0, 10.0, size=data["X"].shape[1])
    sigma = language.draw("sigma", "HalfNormal", 10.0)
    language.observe("y", "Normal", language.array(data["X"]) @ beta, sigma, of=language.array(data["y"]))


def kilpisjarvi(language, data):
    alpha = language.draw("alpha", "Normal", data["pmualpha"], data["psalpha"])
    beta = language.draw("beta", "Normal", data["pmubeta"], data["psbeta"])
    sigma = language.flat("sigma", support="positive")
    language.observe("y", "Normal", alpha + beta * language.array(data["x"]), sigma, of=language.array(data["y"]))


# ---- hierarchies, mixtures, Gaussian processes ---------------------------------------------------------------------


def eight_schools_centered(language, data):
    mu, tau = language.draw("mu", "Normal", 0.0, 5.0), language.draw("tau", "HalfCauchy", 5.0)
    theta = language.draw("theta", "Normal", mu, tau, size=8)
    language.observe("y", "Normal", theta, language.array(data["sigma"]), of=language.array(data["y"]))


def eight_schools_noncentered(language, data):
    mu, tau = language.draw("mu", "Normal", 0.0, 5.0), language.draw("tau", "HalfCauchy", 5.0)
    z = language.draw("theta_trans", "Normal", 0.0, 1.0, size=8)
    language.observe("y", "Normal", mu + tau * z, language.array(data["sigma"]), of=language.array(data["y"]))


def low_dim_gauss_mix(language, data):
    mu = language.flat("mu", 2, support="ordered_vector")
    language.factor("prior of mu", language.log_density("Normal", 0.0, 2.0, of=mu).sum())
    sigma = language.draw("sigma", "HalfNormal", 2.0, size=2)
    theta, y = language.draw("theta", "Beta", 5.0, 5.0), language.array(data["y"])
    log_weights = [language.xp.log(theta), language.xp.log1p(-theta)]
    parts = [log_weights[k] + language.log_density("Normal", mu[k], sigma[k], of=y) for k in range(2)]
    language.factor("y", language.log_sum_exp(language.xp.stack(parts), 0).sum())


def _squared_exponential(language, x, alpha, rho):
    squares = language.array((x[:, None] - x[None]) ** 2)
    return alpha**2 * language.xp.exp(-squares / (2 * rho**2))


def gp_regr(language, data):
    rho, alpha = language.draw("rho", "Gamma", 25.0, 4.0), language.draw("alpha", "HalfNormal", 2.0)
    sigma = language.draw("sigma", "HalfNormal", 1.0)
    covariance = _squared_exponential(language, data["x"], alpha, rho) + sigma * language.array(np.eye(len(data["x"])))
    language.gaussian("y", language.cholesky(covariance), language.array(data["y"]))


def gp_pois_regr(language, data):
    rho, alpha = language.draw("rho", "Gamma", 25.0, 4.0), language.draw("alpha", "HalfNormal", 2.0)
    z, nugget = language.draw("f_tilde", "Normal", 0.0, 1.0, size=len(data["x"])), 1e-10 * np.eye(len(data["x"]))
    covariance = _squared_exponential(language, data["x"], alpha, rho) + language.array(nugget)
    language.observe("k", "Poisson", language.xp.exp(language.cholesky(covariance) @ z), of=language.array(data["k"]))


# ---- series --------------------------------------------------------------------------------------------------------


def ar(language, data):
    order, y = data["K"], data["y"]
    alpha = language.draw("alpha", "Normal", 0.0, 10.0)
    beta, sigma = language.draw("beta", "Normal", 0.0, 10.0, size=order), language.draw("sigma", "HalfCauchy", 2.5)
    before = np.column_stack([y[order - k - 1 : len(y) - k - 1] for k in range(order)])
    language.observe("y", "Normal", alpha + language.array(before) @ beta, sigma, of=language.array(y[order:]))


def arma11(language, data):
    mu = language.draw("mu", "Normal", 0.0, 10.0)
    phi, theta = (language.draw(name, "Normal", 0.0, 2.0) for name in ("phi", "theta"))
    sigma, y = language.draw("sigma", "HalfCauchy", 2.5), language.array(data["y"])
    first = y[0] - (mu + phi * mu)
    later = language.scan(lambda error, now, last: now - (mu + phi * last + theta * error), first, y[1:], y[:-1])
    for name, errors in {"first": first, "later": later}.items():
        language.factor(name, language.log_density("Normal", 0.0, sigma, of=errors).sum())


def garch11(language, data):
    mu, alpha0 = language.flat("mu"), language.flat("alpha0", support="positive")
    alpha1, share = language.draw("alpha1", "Uniform", 0.0, 1.0), language.draw("share", "Uniform", 0.0, 1.0)
    beta1 = share * (1 - alpha1)  # flat between 0 and 1 - alpha1
    language.factor("flat", language.xp.log1p(-alpha1))
    y, first = language.array(data["y"]), language.array(data["sigma1"]) ** 2 + 0 * mu
    later = language.scan(lambda variance, last: alpha0 + alpha1 * (last - mu) ** 2 + beta1 * variance, first, y[:-1])
    language.factor("y first", language.log_density("Normal", mu, first**0.5, of=y[0]))
    language.observe("y", "Normal", mu, later**0.5, of=y[1:])


def _forward(language, emissions, rows):
    """Log likelihood of a hidden Markov chain by the forward algorithm; all states are as likely at first."""
    log_transitions = language.xp.log(language.xp.stack(rows))

    def step(alpha, emission):
        return language.log_sum_exp(alpha[:, None] + log_transitions, 0) + emission

    return language.log_sum_exp(language.scan(step, emissions[0], emissions[1:])[-1], 0)


def _drive(support, emission):
    def model(language, data):
        rows = [language.draw(f"theta{k + 1}", "Dirichlet", language.array(data["alpha"][k])) for k in range(2)]
        phi, rate = (language.flat(name, 2, support=support) for name in ("phi", "lambda"))
        means = language.array([0.0, 3.0])
        for name, value in {"phi": phi, "lambda": rate}.items():
            language.factor(f"prior of {name}", language.log_density("Normal", means, 1.0, of=value).sum())
        u, v = (language.array(data[name])[:, None] for name in ("u", "v"))
        language.factor("u and v", _forward(language, emission(language, data, u, v, phi, rate), rows))

    return model


def _exponential(language, data, u, v, phi, rate):
    return sum(language.log_density("Exponential", scale, of=x) for x, scale in ((u, phi), (v, rate)))


def _normal(language, data, u, v, phi, rate):
    return language.log_density("Normal", phi, data["tau"], of=u) + language.log_density(
        "Normal", rate, data["rho"], of=v
    )


def hmm_example(language, data):
    rows = [language.draw(f"theta{k + 1}", "Dirichlet", language.array([1.0, 1.0])) for k in range(2)]
    mu = language.flat("mu", 2, support="positive_ordered_vector")
    language.factor("prior of mu", language.log_density("Normal", language.array([3.0, 10.0]), 1.0, of=mu).sum())
    emissions = language.log_density("Normal", mu, 1.0, of=language.array(data["y"])[:, None])
    language.factor("y", _forward(language, emissions, rows))


# ---- differential equations ----------------------------------------------------------------------------------------


def _runge_kutta(language, slope, first, times, start):
    """States at the times, from one at ``start``, by a fixed number of steps between them."""
    ends = np.concatenate([[start], times])
    sizes = np.repeat(np.diff(ends) / STEPS_OF_AN_INTERVAL, STEPS_OF_AN_INTERVAL)
    begins = np.concatenate([[start], start + np.cumsum(sizes)[:-1]])

    def step(state, t, h):
        k1 = slope(t, state)
        k2 = slope(t + h / 2, state + h / 2 * k1)
        k3 = slope(t + h / 2, state + h / 2 * k2)
        return state + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(t + h, state + h * k3))

    path = language.scan(step, first, language.array(begins), language.array(sizes))
    return path[STEPS_OF_AN_INTERVAL - 1 :: STEPS_OF_AN_INTERVAL]


def lotka_volterra(language, data):
    location, scale = np.array([1.0, 0.05, 1.0, 0.05]), np.array([0.5, 0.05, 0.5, 0.05])
    theta = language.flat("theta", 4, support="positive")
    prior = language.log_density("Normal", language.array(location), language.array(scale), of=theta)
    language.factor("prior of theta", prior.sum())
    first = language.draw("z_init", "LogNormal", np.log(10.0), 1.0, size=2)
    sigma = language.draw("sigma", "LogNormal", -1.0, 1.0, size=2)

    def slope(t, z):
        growth = language.xp.stack([theta[0] - theta[1] * z[1], -theta[2] + theta[3] * z[0]])
        return growth * z

    path = _runge_kutta(language, slope, first, data["ts"], 0.0)
    language.observe("y_init", "LogNormal", language.xp.log(first), sigma, of=language.array(data["y_init"]))
    language.observe("y", "LogNormal", language.xp.log(path), sigma, of=language.array(data["y"]))


def one_comp_mm_elim_abs(language, data):
    absorption, half, largest, sigma = (
        language.draw(name, "HalfCauchy", 1.0) for name in ("k_a", "K_m", "V_m", "sigma")
    )
    dose, volume = data["D"], data["V"]

    def slope(t, c):
        taken_in = language.xp.exp(-absorption * t) * dose * absorption / volume
        return taken_in - largest / volume * c / (half + c)

    path = _runge_kutta(language, slope, 0.0 * absorption, data["times"], data["t0"])
    language.observe("C_hat", "LogNormal", language.xp.log(path), sigma, of=language.array(data["C_hat"]))


MODELS = {
    **{name: regression(columns) for name, columns in REGRESSIONS.items()},
    **{name: regression(columns, 2.5) for name, columns in REGRESSIONS_WITH_A_PRIOR.items()},
    "arK": ar, "arma11": arma11, "blr": blr, "diamonds": diamonds, "garch11": garch11, "gp_regr": gp_regr,
    "gp_pois_regr": gp_pois_regr, "eight_schools_centered": eight_schools_centered,
    "eight_schools_noncentered": eight_schools_noncentered,
    "hmm_drive_0": _drive("positive_ordered_vector", _exponential),
    "hmm_drive_1": _drive("ordered_vector", _normal), "hmm_example": hmm_example, "kilpisjarvi": kilpisjarvi,
    "lotka_volterra": lotka_volterra, "low_dim_gauss_mix": low_dim_gauss_mix,
    "one_comp_mm_elim_abs": one_comp_mm_elim_abs,
}  # fmt: skip
"""Functions of a language and data, by the names of posteriordb."""
