"""OHMC: Hamiltonian Monte Carlo for models with orthonormal matrices."""

from __future__ import annotations

from typing import ClassVar

from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics, ColumnMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


class OHMC(HamiltonianKernel):
    r"""Hamiltonian Monte Carlo in which orthonormal matrices stay orthonormal, by Cayley rotations.

    A trajectory moves all continuous sites jointly. The momentum r is refreshed (partially with ``persistence``); each
    leapfrog step is half a kick by the force -∇U, a drift, and another half kick:

    - a site whose support is `constraints.stiefel` moves on the manifold itself, for $r$ tangent at X

        $$
        K(X, r) = \frac{1}{2m}\left(\|r\|^2 + \|X^\top r\|^2\right), \quad
        r \leftarrow r - \tfrac{\varepsilon}{2} P_X(\nabla U), \quad
        (X, r) \leftarrow (QX, Qr),
        $$

        Q the Cayley transform of $\tfrac{\varepsilon}{m}(r X^\top - X r^\top)$, at a cost of O(np²) per step. With
        2 to 8 columns, fewer than rows, each column has its own mass, and the drift is a composition of rotations:

        $$ K(X, r) = \sum_k \frac{\|b_k\|^2}{2 m_k} + \frac{\|A\|^2}{m}, \quad A = X^\top r, \; b = r - XA; $$

    - a unit vector (``constraints.sphere``, such as Pyro's ``ProjectedNormal``) moves along great circles;
    - every other site moves by the standard leapfrog step in Pyro's unconstrained space.

    The step is symplectic and reversible with an energy error of O(ε²), and the stationary distribution is exactly the
    posterior (densities on the manifold are with respect to the normalised Haar measure, the uniform distribution).
    Chains whose random initial values are far from the typical set first descend towards it. Warm-up adapts the step
    size by dual averaging, a diagonal or dense mass matrix for the unconstrained sites, and the masses of each Stiefel
    site (the larger its mass, the slower a column moves); masses of columns are estimated separately in each chain.
    Discrete sites are enumerated as in Pyro's HMC. Arguments are those of `pyro.infer.HMC`.

    Args:
        model: a Pyro model; give this or ``potential_fn``.
        potential_fn: function from ``{site: tensor}`` to the potential energy, a tensor of one element; requires
            ``initial_params`` of MCMC, and ``manifolds`` for sites on manifolds.
        step_size: initial ε, and final one if ``adapt_step_size`` is False; 1 if None.
        trajectory_length: mean integration time; if None, ``step_size * num_steps`` if ``num_steps`` is given, else
            adapted during warm-up, starting from π/√2. In the unit of time, adapted sites have unit scale.
        num_steps: number of leapfrog steps of a trajectory at the initial ``step_size``; lengths are then not jittered.
        adapt_step_size: whether to adapt ε during warm-up.
        adapt_mass_matrix: whether to adapt masses during warm-up.
        full_mass: None for diagonal masses of unconstrained sites, plus at most 8 directions across these sites with
            masses of their own (a mass matrix that is a diagonal plus one of low rank) if warm-up finds that they make
            trajectories much shorter, or all scales alike, and that the posterior is close to a Gaussian along them; at
            most 256 coordinates, and 10,000 in all chains. ``"low rank"`` uses them even if trajectories become only a
            little shorter. False for diagonal masses alone, True for a dense mass matrix over all unconstrained sites,
            or a list of tuples of site names, each a dense block. There are no directions with ``jit_compile``, and
            none across sites on manifolds: where one is correlated with other sites, give it ``transforms``.
        transforms: transforms to unconstrained space for some of the sites. A Stiefel site in this mapping moves in
            unconstrained space, in the coordinates of its transform.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        jit_compile: whether to trace and compile the model's density and gradient with `torch.compile`, in place of the
            native code that long runs use by default; falls back with a warning.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: whether to suppress the warning about that fallback.
        target_accept_prob: target acceptance probability of the adaptation of ε. For trajectories of few steps, the
            usual case, 0.9 gives about a third more effective draws than 0.8, for a third more steps.
        init_strategy: a function of `pyro.infer.autoguide.initialization`, `init_to_guide` or `init_to_draws`.
        manifolds: for ``potential_fn``: the manifold of each site that has one, such as ``{"U": Stiefel()}``; other
            sites are in unconstrained space.
        trajectory_jitter: lengths vary evenly by this fraction of their mean, which avoids periodic orbits: by default
            from 0.7 to 1.3 of the mean.
        reflection_probability: probability of proposing a reflection of a square Stiefel site (n = p) before each
            trajectory, so that both signs of its determinant are visited; costs one evaluation of the density.
        persistence: cos θ in [0, 1), the fraction of the momentum that is kept between trajectories,
            $r \leftarrow r\cos\theta + \xi\sin\theta$ with ξ a fresh draw; 0 is a full refreshment. The momentum
            of a rejected chain is reversed. With short trajectories, chains travel further (Horowitz 1991).
        adapt_centring: whether warm-up of 150 iterations or more also chooses the coordinates of sites of a
            location-scale family whose location or scale depends on other sites, from the model as written to its
            non-centred form: $x = \mathrm{loc} + \mathrm{scale}^{1-c} (x' - c\,\mathrm{loc})$, c from 1 to 0. Draws,
            initial values and reports are those of the model as written; ``mcmc.kernel.centredness`` has the c. The
            coordinates of a ``tuning`` are kept in any case, since its masses belong to them.
        column_masses: True for one mass per column of every Stiefel site with 1 < p < n, False for one mass per site
            (shared by all matrices of its plate); None for one mass per column up to 8 columns, beyond which the higher
            cost of a step exceeds the gain unless the density is expensive.
        min_stepsize: lower bound of ε.
        max_stepsize: upper bound of ε, as is the trajectory length.
        inverse_mass_matrix: initial inverse masses, as in ``kernel.inverse_mass_matrix`` after an earlier run:
            ``{block: tensor}``, see `Tuning`. With ``warmup_steps=0``, neither they nor ``step_size`` are changed, and
            there is no search for a step size.
        tuning: ``mcmc.kernel.tuning`` of an earlier run, in place of ``step_size`` and ``inverse_mass_matrix``.

    A trajectory has at most 1,024 steps unless ``num_steps`` is larger, 8 before the first masses are estimated, and
    128 while the trajectory length is adapted.
    dtype and device are those of the model's tensors.

    Raises:
        ValueError: for arguments out of range; in ``MCMC.run``, for initial values that are off the manifold or have no
            finite energy, and for observed NaN.
        NotImplementedError: in ``MCMC.run``, for subsampled plates.

    Source: Yanush & Kropotov, Hamiltonian Monte-Carlo for Orthogonal Matrices, arXiv 1901.08045, algorithm 1, with
    the combination of momentum, energy and gradient for which the step is symplectic.

    Examples:
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
