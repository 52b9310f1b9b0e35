"""OHMC: Hamiltonian Monte Carlo for models with orthonormal matrices."""

from __future__ import annotations

from typing import ClassVar

from pyro_manifold.infer.mcmc.hmc.columns import ColumnMechanics
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.hmc.mechanics import CayleyMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


class OHMC(HamiltonianKernel):
    r"""Hamiltonian Monte Carlo in which orthonormal matrices stay orthonormal, by Cayley rotations.

    One trajectory moves all continuous sites together, a position with a momentum r that is drawn anew (or in part,
    ``persistence``), pushed by half a kick of the force -∇U, carried along by a drift, pushed again:

    - a site whose support is `constraints.stiefel` moves on the manifold itself, for :math:`r` tangent at X

      .. math::
          K(X, r) = \frac{1}{2m}\left(\|r\|^2 + \|X^\top r\|^2\right), \quad
          r \leftarrow r - \tfrac{\varepsilon}{2} P_X(\nabla U), \quad
          (X, r) \leftarrow (QX, Qr),

      Q the Cayley transform of :math:`\tfrac{\varepsilon}{m}(r X^\top - X r^\top)`, at a cost of O(np²) a step; with
      2 to 8 columns, fewer than rows, each column has a mass of its own, and the drift is composed of rotations:

      .. math:: K(X, r) = \sum_k \frac{\|b_k\|^2}{2 m_k} + \frac{\|A\|^2}{m}, \quad A = X^\top r, \; b = r - XA;

    - a unit vector (``constraints.sphere``, such as Pyro's ``ProjectedNormal``) moves along great circles;
    - every other site moves by the ordinary leapfrog in Pyro's unconstrained space.

    The step is symplectic and reversible, its energy error is O(ε²), and the draws have exactly the distribution of
    the model (densities on the manifold are with respect to the normalised Haar measure, the uniform distribution).
    Chains whose random starts are far off descend first. Warm-up adapts the step size by dual averaging, a diagonal or
    dense mass matrix for the unconstrained sites, and the masses of each Stiefel site (the larger its mass, the slower
    a column moves), those of columns in each chain by itself. Discrete sites are enumerated as in Pyro's HMC. Arguments
    are those of `pyro.infer.HMC`.

    Args:
        model: a Pyro model; give this or ``potential_fn``.
        potential_fn: ``{site: tensor}`` to the potential energy; needs ``manifolds``, and ``initial_params`` of MCMC.
        step_size: ε to begin with, and to stay with if ``adapt_step_size`` is False.
        trajectory_length: mean integration time; if None, ``step_size * num_steps`` if there are ``num_steps``, else
            chosen during warm-up, from π/√2 on. The unit of time is that in which adapted sites have unit scale.
        num_steps: leapfrog steps of a trajectory at the initial ``step_size``; then lengths are not jittered.
        adapt_step_size: adapt ε during warm-up.
        adapt_mass_matrix: adapt masses during warm-up.
        full_mass: True for a dense mass matrix over all unconstrained sites, or a list of tuples of site names,
            a dense block each. Stiefel sites keep masses of their own.
        transforms: maps to unconstrained space for some of the sites. A Stiefel site that is named moves there instead,
            in the coordinates of that chart.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        jit_compile: trace and compile the model's density and gradient with `torch.compile`, instead of native code
            in runs that last; falls back with a warning.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: do not warn when compiling falls back.
        target_accept_prob: acceptance probability that the adaptation of ε aims at. Of trajectories of few steps, as
            most are, 0.9 makes about a third more effective draws than 0.8, for a third more steps.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.
        manifolds: for ``potential_fn``: the manifold of each site that has one, such as ``{"U": Stiefel()}``.
        trajectory_jitter: lengths vary evenly within this share of their mean, against periodic orbits: from 0.7 to 1.3
            of it.
        reflection_probability: how often a square Stiefel site (n = p) is offered a reflection before a trajectory,
            so that both signs of its determinant are visited; one more evaluation of the density each time.
        persistence: cos θ in [0, 1), the share of the momentum that a trajectory takes over from the last one,
            :math:`r \leftarrow r\cos\theta + \xi\sin\theta` with ξ a fresh draw; 0 draws momenta anew. A rejected chain
            turns back. With short trajectories, chains travel further for it (Horowitz 1991).
        column_masses: True for a mass for each column of every Stiefel site with 1 < p < n, False for one for each site
            (and for all matrices of its plate); None for a mass for each column up to 8 columns, beyond which a step
            costs more than it gains unless the density is expensive.
        min_stepsize: lower bound of ε.
        max_stepsize: upper bound of ε; a trajectory's length is another.
        inverse_mass_matrix: to begin with, as ``kernel.inverse_mass_matrix`` is after an earlier run: ``{block:
            tensor}``, see `Tuning`. With ``warmup_steps=0`` it stays, and so does ``step_size``: there is no search.
        tuning: ``mcmc.kernel.tuning`` of an earlier run, in place of ``step_size`` and ``inverse_mass_matrix``.

    A trajectory has at most 1,024 steps unless ``num_steps`` asks for more, 16 before the first masses, and 128 while
    lengths are tried out.
    dtype and device are those of the model's tensors.

    Raises:
        ValueError: for arguments out of range; and by ``MCMC.run`` for a start that is off the manifold or has no
            finite energy, and for observed NaN.
        NotImplementedError: by ``MCMC.run``, for subsampled plates.

    Source: Yanush & Kropotov, Hamiltonian Monte-Carlo for Orthogonal Matrices, arXiv 1901.08045, algorithm 1, with
    the pairing of momentum, energy and gradient for which the step is symplectic.

    Example:
        >>> import pyro, torch
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC
        >>> def model():
        ...     U = pyro.sample("U", StiefelUniform(4, 2))
        ...     pyro.factor("likelihood", 5 * U[0, 0] + 5 * U[1, 1])
        >>> mcmc = MCMC(OHMC(model), num_samples=10, warmup_steps=10, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["U"].shape
        torch.Size([10, 4, 2])
    """

    manifold_mechanics: ClassVar[dict[type[Manifold], Mechanics]] = {
        Stiefel: CayleyMechanics(),
        Sphere: GeodesicMechanics(Sphere()),
    }
    with_column_masses: ClassVar[dict[type[Mechanics], Mechanics]] = {CayleyMechanics: ColumnMechanics()}
