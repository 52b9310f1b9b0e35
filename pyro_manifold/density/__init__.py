"""Conversion of a Pyro model to pure functions of tensors, by Pyro's handlers."""

from pyro_manifold.density.angles import PERIODIC
from pyro_manifold.density.batch_program import BatchProgram
from pyro_manifold.density.batched import Batch, BatchedPotential, PotentialFunction, Sites, value_and_gradient
from pyro_manifold.density.batched_density import BatchedDensity
from pyro_manifold.density.batches import Batches, Order, check_order
from pyro_manifold.density.causes import arguments_by_name, explained
from pyro_manifold.density.centring import CENTREDNESS, CentredTarget, centred
from pyro_manifold.density.cut_gradients import refuse_cut_gradients
from pyro_manifold.density.dependent_supports import refuse_dependent, refuse_for_guides, refuse_for_kernels_of_pyro
from pyro_manifold.density.distribution_parts import innermost, parts
from pyro_manifold.density.embedding import Embedding, embedding_from_model
from pyro_manifold.density.epochs import PREFIX, number_of_examples
from pyro_manifold.density.first_run import masks
from pyro_manifold.density.fisher import fisher_embedding
from pyro_manifold.density.flat_priors import StartInSupport, has_no_draws, started
from pyro_manifold.density.handlers import models_run, one_thread_at_a_time
from pyro_manifold.density.initial_values import NoFiniteStartError, finite_values, initial_values
from pyro_manifold.density.minibatch import Minibatch, in_minibatches, shapes_of
from pyro_manifold.density.model import ModelTarget, target_from_model
from pyro_manifold.density.prior import prior_density
from pyro_manifold.density.program import ModelOptions, Program, refuse_guide
from pyro_manifold.density.seeds import seed_of
from pyro_manifold.density.sites import has_data, is_deterministic, is_latent, latent_sites
from pyro_manifold.density.supports import bounds, with_true_support
from pyro_manifold.density.target import Target, target_from_potential
from pyro_manifold.density.tempered import (
    INVERSE_TEMPERATURE,
    TemperedTarget,
    WithoutLikelihood,
    factors,
    likelihood_sites,
    split,
    tempered,
)
