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
    found = (state.in_use, state.model, state.former)
    known = [one for one in found if one is not None and one.known]
    model = next((one for one in known if one.revision == revision), LearnedModel(revision))
    former = next((one for one in known if one.revision != revision), LearnedModel())
    return _anew(state, replace(state, model=model, former=former))


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
    model = state.model.learned(policy, _teachers(state, changes, state.model), now)
    former = state.former
    if former is not None:
        former = former.learned(policy, _teachers(state, changes, former), now)
        if over or (model.known and _comparable(policy, model, former)):
            former = None
    return _anew(state, replace(state, model=model, former=former))


def teaches(state: ScalingState, pod: PodChange, model: LearnedModel) -> bool:
    """Whether a pod's batches are those of one of the two models; of a third revision, of none."""
    if model is state.model:
        return state.runs(pod)
    return not state.runs(pod) and model.revision in ("", pod.revision)


def of_model(intervals: Iterable[Interval], model: LearnedModel) -> list[Interval]:
    """Those whose batches can be compared with it."""
    return [one for one in intervals if one.revision == model.revision]


def _teachers(
    state: ScalingState, changes: Iterable[PodChange], model: LearnedModel
) -> list[PodChange]:
    return [one for one in changes if teaches(state, one, model)]


def _comparable(policy: ScalingPolicy, new: LearnedModel, old: LearnedModel) -> bool:
    """Whether the new revision's batches were half as large as the old one's, if those still fit.

    The first of the new pods get little load. A line through small batches says nothing of large
    ones, and would call for many times the replicas.
    """
    seen = min(old.largest_mean_batch, float(policy.max_batch_size))
    return not old.known or policy.seen_factor * new.largest_mean_batch >= seen


def _anew(before: ScalingState, after: ScalingState) -> ScalingState:
    """Trust and shares are about the service time that is planned with; another begins anew."""
    if after.in_use.revision == before.in_use.revision:
        return after
    return replace(after, shares=(), trust=1.0)
