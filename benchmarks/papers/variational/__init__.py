"""Zhou, Gao, Tran & Gerlach (arXiv 1902.03718): Gaussian guides of low rank."""
