"""Property tests draw the same examples each time, without a time limit: no result depends on luck."""

import os

# Models here are so small that threads of an operation wait for each other longer than they compute: forty
# times longer on a busy machine. To be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import Phase, settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=60, database=None)
# For `tests/mutations.py`: it wants to see a failure, not the smallest one.
settings.register_profile(
    "mutations", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], max_examples=20
)
settings.load_profile("default")
