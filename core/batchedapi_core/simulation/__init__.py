"""A fleet of replicas in virtual time: the same batching, the same autoscaler, no cluster.

    Service + Trace + Controller -> simulate -> Outcome
    Service -> max_rate;  Trace + max_rate -> clairvoyant

Each replica drives the serving image's own Scheduler and Admission.
"""

from batchedapi_core.simulation.controllers import (
    CapacityController,
    Clairvoyant,
    clairvoyant,
    max_rate,
)
from batchedapi_core.simulation.fleet import (
    STARTUP,
    Balancer,
    Controller,
    Fleet,
    Outcome,
    PinnedConnections,
    Places,
    ReplicaChoice,
    Second,
    SimulatedFleet,
    SimulatedPod,
    at_random,
    simulate,
    simulate_together,
)
from batchedapi_core.simulation.replica import NoisyService, Pace
from batchedapi_core.simulation.trace import (
    PoissonTrace,
    RecordedTrace,
    StepTrace,
    Trace,
    replayed,
)
