"""Property tests draw the same examples each time, without a time limit: no result hangs on luck or load."""

from hypothesis import Phase, settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=60, database=None)
# For `tests/mutations.py`: a failure is all it wants to see, not the smallest one.
settings.register_profile(
    "mutations", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], print_blob=False
)
settings.load_profile("default")
