"""docs/reference/conditions.md: every condition and reason, what it means and what to do."""

from collections.abc import Iterator
from typing import Final

from batchedapi_core.manifest import REASONS, ConditionType
from crds.markdown import HEADER, code, table

_INTRODUCTION: Final = """\
A condition is told within ten seconds of the cluster or a replica telling it, and taken back within
ten seconds of the mend, but for what needs a window of load (SLOMet, BatchingEffective). Each
message ends with the remedy below. The first of what is broken is `status.message`, which `kubectl
get bapi -o wide` shows. [The guide](../guides/looking.md#check-an-apis-status) has how to wait for
them.
"""
_ABOUT: Final = {
    ConditionType.READY: "Whether replicas of what the manifest says answer. Where that is broken,"
    " it has reason and message of SpecValid, Scheduled or ModelLoaded.",
    ConditionType.PROGRESSING: "Whether pods of another revision are on their way.",
    ConditionType.SPEC_VALID: "Whether the manifest can become pods.",
    ConditionType.MODEL_LOADED: "Whether a replica of the current revision has its model. What a"
    " replica says of its failed start is in the message.",
    ConditionType.SCHEDULED: "Whether every replica has a node.",
    ConditionType.METRICS_AVAILABLE: "Whether ready replicas tell their figures. Told after three"
    " looks of two seconds, since one page that does not come is no news.",
    ConditionType.AUTOSCALING_ACTIVE: "Whether the operator chooses the number of replicas.",
    ConditionType.SCALING_LIMITED: "What keeps the number of replicas from what is needed.",
    ConditionType.SLO_MET: "Whether the latency target is met over the last minute; an API without"
    " a target has none. Late requests are told within about ten seconds; that they are in time"
    " again, within a minute and a half.",
    ConditionType.BATCHING_EFFECTIVE: "Whether batching does anything, over the last minute. A"
    " change is told once it has lasted, within two minutes.",
    ConditionType.SPEC_ADVICE: "True where the manifest looks like a mistake. Blocks nothing; the"
    " messages have figures and remedies.",
}
_FOR_TOOLS: Final = """\
## Stalled, Reconciling

There while they are True alone: kstatus takes the first for Failed and the second for InProgress,
and with it Flux and Helm. Reason and message are those of the condition that they repeat. Stalled
has one of {lasting}: what stays until somebody changes something. What may pass by itself (an
image that is not there yet, a quota, a node, a source) is not Stalled before the rollout's own
deadline.
"""


def page() -> str:
    """The whole page."""
    lasting = sorted({name for names in REASONS.values() for name in names if names[name].lasting})
    parts = [f"{HEADER}# Conditions\n", _INTRODUCTION]
    for kind, about in _ABOUT.items():
        parts += [f"## {kind.value}\n", f"{about}\n"]
        parts.append(table(("reason", "meaning", "what to do"), _rows(kind)))
    return "\n".join((*parts, _FOR_TOOLS.format(lasting=", ".join(lasting))))


def _rows(kind: ConditionType) -> Iterator[tuple[str, ...]]:
    for name, reason in REASONS[kind].items():
        yield code(name), reason.meaning, reason.remedy
