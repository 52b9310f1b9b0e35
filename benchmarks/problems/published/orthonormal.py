"""Models with orthonormal matrices, rotations and unit vectors."""

import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.posterior import Posterior, all_entries, entries
from benchmarks.problems.published import data
from benchmarks.problems.published.data import doubles, normals, standardised
from pyro_manifold.distributions import MatrixLangevin, SpecialOrthogonalUniform, StiefelUniform


def orthonormal_columns(seed, n, p):
    return torch.linalg.qr(normals(seed, n, p))[0]


def reduced_rank(x, y, rank):
    """Outputs that depend on a few directions of the inputs, Geweke 1996, by a singular value decomposition."""

    def model():
        U = pyro.sample("U", StiefelUniform(x.shape[-1], rank))
        V = pyro.sample("V", StiefelUniform(y.shape[-1], rank))
        sizes = pyro.sample("sizes", dist.HalfNormal(3.0).expand([rank]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0).expand([y.shape[-1]]).to_event(1))
        expected = x @ ((U * sizes[..., None, :]) @ V.mT)
        pyro.sample("y", dist.Normal(expected, noise[..., None, :]).to_event(2), obs=y)

    return model


def of_reduced_rank(draws):
    """Signs and the order of columns cancel in the matrix of the slopes."""
    slopes = (draws["U"] * draws["sizes"][..., None, :]) @ draws["V"].mT
    sizes = draws["sizes"].sort(-1).values
    return {**entries("slopes", slopes), **entries("sizes", sizes), **entries("noise", draws["noise"])}


def exercises():
    """Physiology and exercises of twenty men, the data of Linnerud in Tenenhaus 1998, standardised."""
    from sklearn.datasets import load_linnerud

    loaded = load_linnerud()
    return standardised(loaded.target), standardised(loaded.data)


def simulated_ranks():
    """80 rows of eight inputs and five outputs, of rank 2."""
    x = normals(200, 80, 8)
    slopes = orthonormal_columns(201, 8, 2) * doubles([3.0, 1.0]) @ orthonormal_columns(202, 5, 2).mT
    return x, x @ slopes + 0.7 * normals(203, 80, 5)


def cointegration():
    """An error-correction model whose cointegrating vector has the uniform prior of Villani 2005; simulated."""
    level = [torch.zeros(3, dtype=torch.float64)]
    true = doubles([-0.3, 0.1, 0.2])[:, None] @ doubles([[1.0, -0.5, -0.5]])
    for shock in normals(210, 120, 3):
        level.append(level[-1] + true @ level[-1] + shock)
    level = torch.stack(level)
    before, change = level[:-1], level.diff(dim=0)

    def model():
        relation = pyro.sample("relation", StiefelUniform(3, 1))
        speed = pyro.sample("speed", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        drift = pyro.sample("drift", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([3]).to_event(1))
        factor = pyro.sample("factor", dist.LKJCholesky(3, 2.0))
        expected = drift[..., None, :] + (before @ relation) * speed[..., None, :]
        root = (scales[..., :, None] * factor)[..., None, :, :]
        pyro.sample("change", dist.MultivariateNormal(expected, scale_tril=root).to_event(1), obs=change)

    return model


def of_cointegration(draws):
    """The sign cancels in the product of speeds and relation."""
    product = draws["speed"][..., :, None] * draws["relation"].mT
    correlation = (draws["factor"] @ draws["factor"].mT)[..., [1, 2, 2], [0, 0, 1]]
    rest = all_entries({name: draws[name] for name in ("drift", "scales")})
    return {**entries("product", product), **entries("correlation", correlation), **rest}


def wine():
    """Two principal components of thirteen attributes of wines, Forina et al. 1986, each with a noise of its own."""
    from sklearn.datasets import load_wine

    y = standardised(load_wine().data)

    def model():
        U = pyro.sample("U", StiefelUniform(13, 2))
        scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([2]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0).expand([13]).to_event(1))
        with pyro.plate("rows", len(y)):
            shape = U * scales[..., None, :], noise.square()
            pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros_like(y[0]), *shape), obs=y)

    return model


def digits():
    """Twelve pixels of 150 digits, Alpaydin & Kaynak 1998, by components whose scales may vanish, Bishop 1999."""
    from sklearn.datasets import load_digits

    pixels = [10, 13, 18, 21, 26, 29, 34, 37, 42, 45, 50, 53]
    y = standardised(load_digits().data[:150][:, pixels])

    def model():
        U = pyro.sample("U", StiefelUniform(12, 4))
        relevance = pyro.sample("relevance", dist.HalfCauchy(1.0).expand([4]).to_event(1))
        scales = pyro.sample("scales", dist.HalfNormal(relevance).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("rows", len(y)):
            shape = U * scales[..., None, :], noise[..., None].square().expand(*noise.shape, 12)
            pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros_like(y[0]), *shape), obs=y)

    return model


def of_factors(draws):
    """The covariance without the noise, its scales in order, and the noise."""
    root = draws["U"] * draws["scales"][..., None, :]
    common = root @ root.mT
    variances = common.diagonal(dim1=-2, dim2=-1)
    shared = {**entries("variance", variances), **entries("covariance", common[..., 0, 1:])}
    return {**shared, **entries("scales", draws["scales"].sort(-1).values), **entries("noise", draws["noise"])}


def alignment():
    """Fifteen landmarks and their turned, scaled and shifted copies, Green & Mardia 2006, matched; simulated."""
    x = normals(220, 15, 3) * doubles([2.0, 1.0, 0.5])
    turn = orthonormal_columns(221, 3, 3)
    turn = turn * torch.linalg.det(turn)
    y = 1.3 * x @ turn.mT + doubles([1.0, -2.0, 0.5]) + 0.3 * normals(222, 15, 3)

    def model():
        R = pyro.sample("R", SpecialOrthogonalUniform(3))
        size = pyro.sample("size", dist.LogNormal(0.0, 1.0))
        shift = pyro.sample("shift", dist.Normal(0.0, 5.0).expand([3]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        expected = size[..., None, None] * (x @ R.mT) + shift[..., None, :]
        pyro.sample("y", dist.Normal(expected, noise[..., None, None]).to_event(2), obs=y)

    return model


def directions():
    """Von Mises–Fisher directions of eight groups around a common one, Mardia & Jupp 2000, chapter 10; simulated."""
    common = doubles([0.0, 0.6, 0.8])
    centres = common + 0.25 * normals(230, 8, 3)
    y = (centres / centres.norm(dim=-1, keepdim=True))[:, None] + 0.3 * normals(231, 8, 12, 3)
    y = y / y.norm(dim=-1, keepdim=True)

    def model():
        mean = pyro.sample("mean", StiefelUniform(3, 1))
        between = pyro.sample("between", dist.HalfNormal(20.0))
        within = pyro.sample("within", dist.HalfNormal(20.0))
        with pyro.plate("groups", 8):
            own = pyro.sample("own", MatrixLangevin(between[..., None, None] * mean))
            with pyro.plate("rows", 12):
                pyro.sample("y", MatrixLangevin(within[..., None, None] * own), obs=y.transpose(0, 1)[..., None])

    return model


def pairs_of_families():
    """Return both indices of each pair of 15 families, and whether a marriage links them."""
    pairs = torch.triu_indices(15, 15, 1)
    links = torch.zeros(15, 15, dtype=torch.float64)
    links[tuple(torch.tensor(data.MARRIAGES).T)] = 1.0
    return pairs, links[tuple(pairs)]


def marriages():
    """Eigenmodel of Hoff 2009 of the marriages of Florentine families, Padgett & Ansell 1993."""
    pairs, links = pairs_of_families()

    def model():
        U = pyro.sample("U", StiefelUniform(15, 2))
        values = pyro.sample("values", dist.Normal(0.0, 15.0**0.5).expand([2]).to_event(1))
        level = pyro.sample("level", dist.Normal(0.0, 10.0))
        logits = level[..., None] + ((U * values[..., None, :]) @ U.mT)[..., pairs[0], pairs[1]]
        pyro.sample("links", dist.Bernoulli(logits=logits).to_event(1), obs=links)

    return model


def of_marriages(draws):
    """Signs and the order of columns cancel in the logits of links between the Medici and others."""
    root = draws["U"] * draws["values"][..., None, :]
    logits = (root @ draws["U"].mT)[..., 8, [0, 1, 3, 10, 13]] + draws["level"][..., None]
    values = draws["values"].sort(-1).values
    return {**entries("logits", logits), **entries("values", values), "level": draws["level"]}


def orthonormal():
    return {
        "exercises, rank 1": Posterior(reduced_rank(*exercises(), 1), of_reduced_rank),
        "reduced rank 2": Posterior(reduced_rank(*simulated_ranks(), 2), of_reduced_rank),
        "cointegration": Posterior(cointegration(), of_cointegration),
        "components of wine": Posterior(wine(), of_factors),
        "components of digits": Posterior(digits(), of_factors),
        "alignment by a rotation": Posterior(alignment(), all_entries),
        "directions of groups": Posterior(directions(), all_entries),
        "Florentine marriages": Posterior(marriages(), of_marriages),
    }
