"""DAPO (arXiv 2503.14476) in pure PyTorch, to be read beside the paper."""

import os

# Read by OpenMP when torch is first imported, so it has to stand here. Without a GPU, waiting threads that
# spin take the cores from the other processes and from the verifier: an update was four times slower on a
# busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
