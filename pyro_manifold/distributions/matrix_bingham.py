"""The matrix Bingham distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.distributions.matrix_angular_central_gaussian import check_square
from pyro_manifold.distributions.matrix_bingham_von_mises_fisher import MatrixBinghamVonMisesFisher
from pyro_manifold.distributions.stiefel_uniform import Chart
from pyro_manifold.manifolds import check_shape


class MatrixBingham(MatrixBinghamVonMisesFisher):
    r"""Matrix Bingham distribution, $p(X) \propto e^{\operatorname{tr} B X^\top A X}$, of orthonormal matrices.

    The density does not depend on the signs of the columns of X (for diagonal B); with B the identity it depends only
    on the subspace that X spans. p = 1 is the Bingham distribution of unit vectors.

    **``log_prob`` leaves out the normalising constant**: use it for X given A and B, not to infer them; it raises if
    one of them requires a gradient. The base measure is the uniform distribution (the normalised Haar measure).
    ``sample`` makes exact draws, by rejection from angular central Gaussian proposals, for the span of X and then for
    its columns. The acceptance rate hardly falls with the concentration if the entries of B are of one sign and not far
    apart.

    Args:
        A: ``(..., n, n)``, of which only the symmetric part is used; gives dtype and device.
        B: ``(..., p, p)``, of which only the symmetric part is used; the identity if None.
        p: number of columns, at most n; needed if B is None.
        chart: the transform from unconstrained space to the manifold in Pyro's own inference, ``"polar"``
            (`PolarTransform`) or ``"householder"`` (`HouseholderTransform`).

    Shapes: batch: those of A and B broadcast; event ``(n, p)``.

    Raises:
        ValueError: if shapes or dtypes do not fit, or unless exactly one of B and p is given.
        NotImplementedError: by ``log_prob``, if A or B requires a gradient.
        RuntimeError: by ``sample``, if the acceptance rate is too low for draws in reasonable time.

    Source: Kent, Ganeiber and Mardia 2018, J. Comput. Graph. Stat. 27, 291–301.

    Examples:
        >>> A = torch.diag(torch.tensor([1e9, 1e9, 0.0]))
        >>> MatrixBingham(A, p=2).sample()[2].abs().max().item() < 1e-3
        True
    """

    def __init__(
        self,
        A: Tensor,
        B: Tensor | None = None,
        *,
        p: int | None = None,
        chart: Chart = "polar",
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        n = check_square(name, "A", A)
        if (B is None) == (p is None):
            raise ValueError(f"{name}: give exactly one of B and, if B is the identity, the number of columns p.")
        if p is not None:
            if not isinstance(p, int):
                raise ValueError(f"{name}: p={p!r}, expected an integer.")
            check_shape(n, p, name)
            B = torch.eye(p, dtype=A.dtype, device=A.device)
        assert B is not None
        p = check_square(name, "B", B)
        super().__init__(A, B, A.new_zeros(n, p), chart=chart, validate_args=validate_args)
