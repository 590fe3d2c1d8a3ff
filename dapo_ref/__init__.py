"""DAPO (arXiv 2503.14476) in pure PyTorch, to be read beside the paper."""
