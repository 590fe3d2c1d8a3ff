"""Property tests draw the same examples each time, without a time limit: no result hangs on luck or load."""

from hypothesis import Phase, settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=60, database=None)
# For `tests/mutations.py`: it wants to see a failure, not the smallest one.
settings.register_profile(
    "mutations", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], max_examples=20
)
settings.load_profile("default")
