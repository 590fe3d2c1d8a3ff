"""DAPO (arXiv 2503.14476) in pure PyTorch, to be read beside the paper.

Where to read: `train.py` is Algorithm 1. `loss.py` has the objective, `reward.py` the rewards,
`dynamic_sampling.py` the filter. `objective.py` and `scoring.py` choose among their variants. Below them:

    data/          rows → problems → prompts
    verifier/      is an answer equivalent to the reference?
    policy/        sampling from π_θ and log π_θ, in one process
    distributed/   ZeRO-3: all that knows accelerate, DeepSpeed and torch.distributed
    run/           metrics, files, checkpoints, stop and resume
    tiny/          models and tasks for a machine without a GPU

Imports point one way; `tests/test_house.py` keeps it so.

Dimensions, everywhere the same
    P  groups, one a prompt                    G  responses a group
    B  responses of a batch, B = P·G           b  responses of a micro-batch, rows of a call
    T  response tokens, padded                 L  prompt plus response tokens, padded
    n  tokens packed without padding           W  processes (ranks); in `rollout.py` columns
    H  hidden size                             V  vocabulary
    h  attention heads                         d  head size

Words, each for one thing
    prompt          the tokens a response follows
    response        oᵢ, the sampled tokens, its end token included
    rollout         a response with its text, verdict and reward
    group           the G responses to one prompt
    rollout step    one pass of Algorithm 1, lines 2–11
    round           sampling for one D_b; a rollout step has as many as it needs to fill the batch
    batch           the groups a rollout step trains on
    mini-batch      the responses of one optimiser update
    micro-batch     what one process computes at once; where it is cut changes no result
    verdict         right or not, and how that was decided
    reward          Rᵢ of Eq. 9, made of the verdict and whatever is added to it
    response mask   True at the response tokens that are trained
    π_old           the policy that sampled the batch; π_θ is the one in training
    rollout model   the copy of π_old that is sampled from
    sampler         how responses are sampled: `generate` in segments, or continuous batching
    checkpoint      weights, optimiser and state of the loop, to resume from; `model/` is the export
"""

import os

__version__ = "0.1.0"

# Read by OpenMP when torch is first imported, so it has to stand here. Without a GPU, waiting threads that
# spin take the cores from the other processes and from the verifier: an update was four times slower on a
# busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
