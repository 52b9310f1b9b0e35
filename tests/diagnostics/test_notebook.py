"""What notebooks show of runs."""

from xml.etree import ElementTree

import pyro
import pyro.distributions as dist
import torch

from pyro_manifold.diagnostics import Posterior, in_html
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC


def cells(html):
    """Text above the table, and its rows."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    return "".join(root.find("p").itertext()), rows, ["".join(bold.itertext()) for bold in root.iter("strong")][1:]


def test_each_site_has_a_row_and_large_r_hats_are_bold():
    pyro.set_rng_seed(0)
    apart = torch.randn(4, 100) + torch.arange(4.0)[:, None]
    draws = {
        "a<b": torch.randn(4, 100, 2, 3),
        "apart": apart,
        "constant": torch.ones(4, 100),
        "none": torch.ones(4, 100, 0),
    }
    text, rows, bold = cells(in_html(Posterior(draws, {"diverging": torch.eye(4, 100)}), "mine"))
    assert text == "mine: 4 chains of 100 draws, 4 divergences"
    assert [row[:2] for row in rows[1:]] == [["a<b", "2×3"], ["apart", "number"], ["constant", "number"], ["none", "0"]]
    assert bold == [row[2] for row in rows[1:3] if float(row[2]) > 1.01]
    assert float(rows[2][2]) > 1.3 > 1.1 > float(rows[1][2])
    assert rows[3][2:] == ["constant", ""]
    assert rows[4][2:] == ["", ""]


def test_draws_that_are_not_finite_are_named():
    draws = torch.randn(2, 20, 3)
    draws[1, 7, 0] = torch.nan
    _, rows, bold = cells(in_html(Posterior({"x": draws, "few": torch.randn(2, 20)}), "mine"))
    assert rows[1][2:] == ["not finite", ""]
    assert bold[0] == "not finite"
    _, rows, _ = cells(in_html(Posterior({"x": torch.randn(1, 4)}), "a chain alone"))
    assert rows[1][2] == ""
    assert float(rows[1][3]) > 0


def model():
    U = pyro.sample("U", StiefelUniform(3, 1))
    pyro.sample(
        "y", dist.Normal((U @ U.mT).flatten(), 0.1).to_event(1), obs=torch.eye(3)[0].outer(torch.eye(3)[0]).flatten()
    )


def test_runs():
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(model), num_samples=60, warmup_steps=60, num_chains=4, disable_progbar=True)
    assert "no draws yet" in mcmc._repr_html_()
    mcmc.run()
    text, rows, _ = cells(mcmc._repr_html_())
    assert text.startswith("MCMC by OHMC: 4 chains of 60 draws, ")
    assert float(rows[1][2]) < 1.1  # of aligned draws: as sampled they have two signs
    smc = SMC(OHMC(model), num_particles=64, num_runs=2, disable_progbar=True)
    assert "no draws yet" in smc._repr_html_()
    smc.run()
    assert f"log evidence {smc.log_evidence:.2f} ± " in cells(smc._repr_html_())[0]
