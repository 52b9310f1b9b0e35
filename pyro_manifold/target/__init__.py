"""From a Pyro model to pure functions of tensors; with `infer`, the one place that touches Pyro's handlers."""
