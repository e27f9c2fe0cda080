"""For all tests.

hypothesis' plugin imports hypothesis at the end of a run that did not use it, deep in pytest's
summary, where CPython 3.11 may fail to parse a module ("AST constructor recursion depth
mismatch"); imported here, it is there already.
"""

import hypothesis

# By default an example that takes more than 200 ms is an error: on a busy machine each one may.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

__all__ = ["hypothesis"]
