"""Self-test of an installation, in less than 20 seconds: `python -m pyro_manifold.check`.

It prints versions, the C compiler, whether native code is available and the CUDA devices. Then it compares draws with
distributions whose means are known exactly, from integrals that use nothing of this package. ``--json`` prints the same
as JSON, and ``--seed`` sets the seed of the draws.

The exit status is 0 if all comparisons agree, else 1. A missing C compiler is reported and is no failure: sampling is
slower without one, and nothing else changes.

`exact` has the integrals, `comparisons` the draws, `installation` the versions, and `report` the table.
"""

from pyro_manifold.check.comparisons import Comparison, langevin_chains, langevin_draws, uniform_draws
from pyro_manifold.check.exact import langevin_moments, principal_component_moments
