"""For all tests.

hypothesis' plugin imports hypothesis at the end of a run that did not use it, deep in pytest's
summary, where CPython 3.11 may fail to parse a module ("AST constructor recursion depth
mismatch"); imported here, it is there already.
"""

import hypothesis

__all__ = ["hypothesis"]
