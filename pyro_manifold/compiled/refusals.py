"""Constructs that tracing does not support, and the warning of their cost."""

BRANCHES_ON_A_VALUE = "it branches on, or calls .item() on, a latent value or an input"


class NotTraced(UserWarning):
    """Warning of a function for which a backend is not available, with the reason; it is evaluated more slowly.

    Args:
        message: what is missing, and why.
        backend: name of the backend.
    """

    def __init__(self, message: str, backend: str = "traced") -> None:
        super().__init__(message)
        self.backend = backend
