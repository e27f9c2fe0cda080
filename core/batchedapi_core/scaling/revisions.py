"""Which pods teach which service time: during a rollout two revisions serve side by side.

A new revision is learned from its own pods alone. Until enough is known of it, which is never if
the rollout is stuck, replicas are planned with what the pods of the old one taught and still teach.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from batchedapi_core.scaling.model import LearnedModel
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.scaling.window import Interval


def of_revision(state: ScalingState, revision: str) -> ScalingState:
    """Another image, model or batching has another service time; a rollback has the one before."""
    if state.model.revision == revision:
        return state
    known = [one for one in (state.model, state.former) if one.known]
    model = next((one for one in known if one.revision == revision), LearnedModel(revision))
    former = next((one for one in known if one.revision != revision), LearnedModel())
    return replace(state, model=model, former=former, shares=(), trust=1.0)


def taught(
    policy: ScalingPolicy,
    state: ScalingState,
    changes: Sequence[PodChange],
    now: float,
    *,
    over: bool,
) -> ScalingState:
    """Both models after a look.

    Args:
        policy: Says how fast a model forgets.
        state: Of the revision that is rolled out.
        changes: Of the pods that answered.
        now: Monotonic seconds.
        over: No pod of another revision is left.
    """
    own = [one for one in changes if state.runs(one)]
    model = state.model.learned(policy, own, now)
    if over:
        return replace(state, model=model, former=LearnedModel())
    former = state.former
    others = [
        one for one in changes if not state.runs(one) and former.revision in ("", one.revision)
    ]
    return replace(state, model=model, former=former.learned(policy, others, now))


def of_model(intervals: Iterable[Interval], model: LearnedModel) -> list[Interval]:
    """Those whose batches can be compared with it."""
    return [one for one in intervals if one.revision == model.revision]
