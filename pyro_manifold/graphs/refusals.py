"""Messages of constructs that tracing does not support."""

BRANCHES_ON_A_VALUE = "the model branches on, or calls .item() on, a latent value"
