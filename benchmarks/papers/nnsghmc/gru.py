"""A gated recurrent unit on one sequence at a time: log-likelihood and gradient as native code and products.

A batch of one sequence leaves torch with products of a matrix and a vector, and a dozen operators a time step whose
calls cost more than their arithmetic. Here the recurrence of a chain is one call of C, forwards and backwards; what
does not depend on the state before (the output layer, and the gradient of the matrices, which is a sum over time) is
done for all times together, by matrix products. Sequences lie one after another in one array of notes, so that lengths
differ without padding, and the graph in which the operator is a node is the same for all of them.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from pyro_manifold.compiled.native import compiled

NOTES = 88
SOURCE = r"""
static float dot(const float *a, const float *b, int n) {
    float s = 0;
    #pragma omp simd reduction(+:s)
    for (int i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}
static void add(float *restrict to, const float *restrict from, int n) {
    #pragma omp simd
    for (int i = 0; i < n; i++) to[i] += from[i];
}
/* States h (T + 1, H) from h[0], and of each time the gates: reset, keep, new, and the part of new that is reset. */
void forwards(int T, int H, const unsigned char *notes, const float *in, const float *in_bias, const float *u,
              const float *u_bias, float *h, float *gates) {
    float x[3 * H], a[3 * H];
    for (int t = 0; t < T; t++) {
        const float *before = h + t * H;
        for (int k = 0; k < 3 * H; k++) x[k] = in_bias[k];
        for (int j = 0; t && j < 88; j++) if (notes[(t - 1) * 88 + j]) add(x, in + j * 3 * H, 3 * H);
        for (int k = 0; k < 3 * H; k++) a[k] = u_bias[k] + dot(u + k * H, before, H);
        float *r = gates + t * 4 * H, *z = r + H, *n = z + H, *part = n + H, *after = h + (t + 1) * H;
        #pragma omp simd
        for (int k = 0; k < 2 * H; k++) r[k] = 1 / (1 + expf(-(x[k] + a[k])));
        #pragma omp simd
        for (int k = 0; k < H; k++) {
            part[k] = a[2 * H + k];
            n[k] = 2 / (1 + expf(-2 * (x[2 * H + k] + r[k] * part[k]))) - 1;
            after[k] = n[k] + z[k] * (before[k] - n[k]);
        }
    }
}
/* Gradients of what enters gates from notes and from states, (T, 3H) each, from those of states, (T, H). */
void backwards(int T, int H, const unsigned char *notes, const float *u, const float *h, const float *gates,
               const float *by_state, float *by_heard, float *by_gate, float *by_in) {
    float d[H], next[H];
    for (int k = 0; k < H; k++) d[k] = 0;
    for (int t = T - 1; t >= 0; t--) {
        const float *r = gates + t * 4 * H, *z = r + H, *n = z + H, *part = n + H, *before = h + t * H;
        float *x = by_heard + t * 3 * H, *a = by_gate + t * 3 * H;
        add(d, by_state + t * H, H);
        #pragma omp simd
        for (int k = 0; k < H; k++) {
            float new = d[k] * (1 - z[k]) * (1 - n[k] * n[k]);
            x[k] = a[k] = new * part[k] * r[k] * (1 - r[k]);
            x[H + k] = a[H + k] = d[k] * (before[k] - n[k]) * z[k] * (1 - z[k]);
            x[2 * H + k] = new;
            a[2 * H + k] = new * r[k];
            next[k] = d[k] * z[k];
        }
        for (int k = 0; k < 3 * H; k += 3) {
            const float *row = u + k * H;
            const float p = a[k], q = a[k + 1], s = a[k + 2];
            #pragma omp simd
            for (int i = 0; i < H; i++) next[i] += p * row[i] + q * row[H + i] + s * row[2 * H + i];
        }
        for (int k = 0; k < H; k++) d[k] = next[k];
        for (int j = 0; t && j < 88; j++) if (notes[(t - 1) * 88 + j]) add(by_in + j * 3 * H, x, 3 * H);
    }
}
"""


@cache
def _library() -> ctypes.CDLL:
    return compiled(SOURCE, 1)


def _call(name: str, *arguments: int | Tensor) -> None:
    for x in arguments:
        if isinstance(x, Tensor) and not x.is_contiguous():
            raise ValueError(f"{name}: a tensor with strides {x.stride()}, expected a contiguous one.")
    getattr(_library(), name)(
        *[ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int(x) for x in arguments]
    )


def states_of(weights: list[Tensor], notes: Tensor) -> tuple[Tensor, Tensor]:
    """States ``(times + 1, units)``, of which the first is 0, and gates ``(times, 4 units)``, of one chain.

    Args:
        weights: of `Recurrent`, without those of the output.
        notes: ``(times, 88)``, 0 or 1, as bytes; the state after the first time has heard nothing.
    """
    heard, heard_bias, state, state_bias = weights
    times, units = len(notes), state.shape[1]
    states, gates = notes.new_empty((times + 1, units), dtype=torch.float32), heard.new_empty(times, 4 * units)
    states[0] = 0
    _call("forwards", times, units, notes, heard.T.contiguous(), heard_bias, state, state_bias, states, gates)
    return states, gates


def _of_one(weights: list[Tensor], notes: Tensor) -> list[Tensor]:
    """Log-likelihood of a time, and its gradient by each of the weights, of one chain."""
    *recurrent, out, out_bias = (x.contiguous() for x in weights)
    heard, state = recurrent[0], recurrent[2]
    states, gates = states_of(recurrent, notes)
    times, units = len(notes), state.shape[1]
    after, played = states[1:], notes.to(out.dtype)
    logits = torch.addmm(out_bias, after, out.T)
    value = (played * logits - torch.nn.functional.softplus(logits)).sum() / times
    by_logit = (played - torch.sigmoid(logits)) / times
    by_heard, by_gate = (out.new_empty(times, 3 * units) for _ in range(2))
    by_in = out.new_zeros(NOTES, 3 * units)
    _call("backwards", times, units, notes, state, states, gates, by_logit @ out, by_heard, by_gate, by_in)
    return [
        value, by_in.T.reshape(heard.shape), by_heard.sum(0), by_gate.T @ states[:-1], by_gate.sum(0),
        by_logit.T @ after, by_logit.sum(0),
    ]  # fmt: skip


# torch 2.6 does not read `list[Tensor]`.
@torch.library.custom_op(
    "nnsghmc_music::likelihood",
    mutates_args=(),
    schema="(Tensor[] weights, Tensor notes, Tensor starts, Tensor rows) -> Tensor[]",
)
def likelihood(weights: list[Tensor], notes: Tensor, starts: Tensor, rows: Tensor) -> list[Tensor]:
    """Values ``(chains,)`` and gradients of chains, each of the sequence of its row; weights have a chain dimension."""
    chains = []
    for chain in range(len(weights[0])):
        first, last = starts[rows[chain] : rows[chain] + 2].tolist()
        chains.append(_of_one([x[chain] for x in weights], notes[first:last]))
    return [torch.stack(parts) for parts in zip(*chains, strict=True)]


@likelihood.register_fake
def _(weights: list[Tensor], notes: Tensor, starts: Tensor, rows: Tensor) -> list[Tensor]:
    return [weights[0].new_empty(len(weights[0])), *[torch.empty_like(x) for x in weights]]


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output[1:])


def _backward(ctx, gradients: list[Tensor]):
    by_value = gradients[0]
    return [by_value.view(-1, *[1] * (x.dim() - 1)) * x for x in ctx.saved_tensors], None, None, None


likelihood.register_autograd(_backward, setup_context=_keep)


@likelihood.register_vmap
def _(info, in_dims, weights, notes, starts, rows):
    """Rows of the operator are chains already: those of `torch.vmap` become more of them."""
    size = info.batch_size

    def together(x: Tensor, dimension: int | None) -> Tensor:
        x = x.unsqueeze(0).expand(size, *x.shape) if dimension is None else x.movedim(dimension, 0)
        return x.flatten(0, 1)

    dims = in_dims[0] if in_dims[0] is not None else [None] * len(weights)
    found = likelihood(
        [together(*pair) for pair in zip(weights, dims, strict=True)], notes, starts, together(rows, in_dims[3])
    )
    return [x.unflatten(0, (size, -1)) for x in found], [0] * len(found)


def mean_likelihood(weights: list[Tensor], notes: Tensor, starts: Tensor, row: Tensor) -> Tensor:
    """Log-likelihood of a time step of one sequence, ``()``, differentiable by weights and under `torch.vmap`.

    Args:
        weights: of `Recurrent`, in the order of its parameters, float32.
        notes: notes of all sequences, one after another, ``(times of all, 88)``, as bytes.
        starts: where each begins, and the end of the last, ``(sequences + 1,)``.
        row: number of the sequence, ``(1,)``.
    """
    return likelihood([x.unsqueeze(0) for x in weights], notes, starts, row)[0].squeeze(0)
