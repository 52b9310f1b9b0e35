"""Messages of constructs that tracing does not support."""

ASKS_FOR_A_NUMBER = (
    "a branch, item(), an index without dimensions or the like asks for a number that depends on what is sampled"
)
