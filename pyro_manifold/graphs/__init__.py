"""Functions of tensors as graphs: traced, folded, compiled, and trusted only after a comparison."""
