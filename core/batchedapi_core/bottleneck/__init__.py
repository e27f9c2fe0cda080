"""The limit of an API, in one word, and what to change: the tuning steps of the guide as code.

    BottleneckEvidence -> rules, the first that applies -> Finding -> settle -> Verdict

`diagnose` is the whole of it, a function of values. Counters are pooled over pods and the window
before they are divided, as for scaling.
"""

from batchedapi_core.bottleneck.diagnose import diagnose
from batchedapi_core.bottleneck.evidence import BottleneckEvidence, Finding, Kind, PodLoad, Verdict
from batchedapi_core.bottleneck.service_level import Filling, Level, Told, batches_fill, target_met
from batchedapi_core.bottleneck.unpressed import SHORTEST_WINDOW
