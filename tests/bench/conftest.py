"""The programs of this folder import each other by name, as when they are run as scripts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
