"""Files as somebody may write them, which kubectl and the laptop must read alike."""

from typing import Final

_HEAD: Final = "apiVersion: batchedapi.dev/v1alpha1\nkind: BatchedAPI\n"
_NAMED: Final = f"{_HEAD}metadata: {{name: a}}\n"
_GOOD: Final = f"{_NAMED}spec: {{predictor: {{path: m:C}}}}\n"


def _spec(line: str) -> str:
    return f"{_NAMED}spec:\n  predictor: {{path: m:C}}\n  {line}\n"


def _predictor(line: str) -> str:
    return f"{_NAMED}spec:\n  predictor:\n    path: m:C\n    {line}\n"


def _batching(member: str) -> str:
    return _spec(f"serverSideBatching: {{{member}}}")


def _metadata(members: str) -> str:
    return f"{_HEAD}metadata: {{{members}}}\nspec: {{predictor: {{path: m:C}}}}\n"


TEXTS: Final[dict[str, str]] = {
    "good": _GOOD,
    "json": '{"apiVersion": "batchedapi.dev/v1alpha1", "kind": "BatchedAPI",\n'
    '\t"metadata": {"name": "a"}, "spec": {"predictor": {"path": "m:C"}}}',
    "a list of one": "apiVersion: v1\nkind: List\nitems:\n- "
    + _GOOD.replace("\n", "\n  ").rstrip(),
    "an empty document behind it": f"{_GOOD}---\n",
    "nothing": "",
    "a comment": "# nothing\n",
    "a text": "hello",
    "a number": "5",
    "a list": "- a\n",
    "no YAML": f"{_NAMED}spec:\n\tpredictor: {{}}\n",
    "a text beside it": f"{_GOOD}---\nhello\n",
    "a key twice": _predictor("path: m:D"),
    "a flag of one letter": _spec("paused: y"),
    "a flag in capitals": _spec("paused: On"),
    "a flag that is off": _spec("paused: n"),
    "a flag in quotes": _spec('paused: "yes"'),
    "off without quotes": _spec("replicas: 1\n  autoscaling: {mode: Off}"),
    "off in quotes": _spec("replicas: 1\n  autoscaling: {mode: 'Off'}"),
    **{
        f"a size of {number}": _batching(f"maxBatchSize: {number}")
        for number in (
            "5.0", "5.5", "1e1", "1E+1", ".5e1", '"5"', "true", "0x10", "010", "0o10", "1_000",
            "0b11", "+5", "0x_f", "09", "-0x10", "1:30", "1e400", "null", "~", "2024-01-01",
        )
    },
    "every scalar in config": _predictor(
        "config: {a: 1:30, b: 2024-01-01, c: 12:30:45, d: 2024-01-01T00:00:00Z, e: .5, f: 1.,"
        " g: 1_0.5, h: .inf2, i: 0x_f, j: 09, k: -0x10, l: 12e03, m: 1e400, n: ~, o: y, p: 'y',"
        " q: 0o17, r: +.5, s: 123456789012345678901234567890, t: =, u: 1.5.6, v: -1, w: '~',"
        " x: !!str 1, y: !!binary aGk=, z: !own 1, aa: !!set {x, y}, ab: [~, {a: ~}], ac: 1.0,"
        " ad: !!int '7', ae: !own [1], af: !own {a: 1}}"
    ),
    "keys that are no texts": _predictor("config: {1: a, true: b, 1.5: c}"),
    "a number as a field": _spec("1: a"),
    "infinity": _predictor("config: {a: .inf}"),
    "no number": _predictor("config: {a: .nan}"),
    "an alias": f"{_NAMED}spec:\n  predictor:\n    path: m:C\n"
    "    env: [&e {name: A, value: x}, {<<: *e, name: B}]\n",
    "an alias of itself": _predictor("config: &c {a: *c}"),
    **{
        f"null for {field}": _spec(f"{field}: null")
        for field in ("serverSideBatching", "compute", "replicas", "paused", "other")
    },
    **{
        f"null for predictor.{field}": _predictor(f"{field}: null")
        for field in ("env", "config", "model", "warmup", "processesPerReplica", "startupTimeout")
    },
    "null for a user id": _spec("pod: {runAsUser: null}"),
    "null for a duration": _batching("batchInterval: null"),
    "null for the path": f"{_NAMED}spec: {{predictor: {{path: null}}}}",
    "null for the predictor": f"{_NAMED}spec: {{predictor: null}}",
    "null for the spec": f"{_NAMED}spec:\n",
    "no spec": _NAMED,
    "null in a list of objects": _predictor("env: [null]"),
    "null in a list of numbers": _predictor("warmup: {batchSizes: [null]}"),
    "null for a value": _predictor("env: [{name: A, value: null}]"),
    "null for a name": _predictor("env: [{name: null}]"),
    "null for the only source": _predictor("source: {configMap: null}"),
    "a field beside spec": f"sepc: {{}}\n{_GOOD}",
    "a status": f"{_GOOD}status: {{phase: Live}}\n",
    "a status of another type": f"{_GOOD}status: {{phase: 1}}\n",
    "a status with a field that is none": f"{_GOOD}status: {{foo: 1}}\n",
    "no kind": _GOOD.replace("kind: BatchedAPI\n", ""),
    "no version": _GOOD.replace("apiVersion: batchedapi.dev/v1alpha1\n", ""),
    "another kind": _GOOD.replace("kind: BatchedAPI", "kind: Batchedapi"),
    "another version": _GOOD.replace("v1alpha1", "v1"),
    "a kind that is a number": _GOOD.replace("kind: BatchedAPI", "kind: 1"),
    "no metadata": _GOOD.replace("metadata: {name: a}\n", ""),
    **{
        f"metadata {members}": _metadata(members)
        for members in (
            "", "name: null", 'name: ""', "name: 1", "name: A", f"name: {'a' * 60}",
            "generateName: a-", "name: a, foo: 1", "name: a, generation: 3",
            "name: a, generation: '3'", "name: a, uid: 3", "name: a, namespace: 1",
            "name: a, namespace: null", "name: a, finalizers: x", "name: a, labels: null",
            "name: a, labels: []", "name: a, labels: {x: 1}", "name: a, labels: {x: null}",
            "name: a, labels: {x: ''}", "name: a, labels: {x: 'a b'}",
            "name: a, labels: {'x y': a}",
            "name: a, labels: {example.com/x: a_b.c-d}", f"name: a, labels: {{x: {'a' * 64}}}",
            f"name: a, labels: {{{'b' * 64}: a}}", "name: a, labels: {Example.com/x: a}",
            "name: a, labels: {/x: a}", f"name: a, labels: {{{'b' * 254}/x: a}}",
            "name: a, annotations: {x: 1}", "name: a, annotations: {x: 'a b'}",
            "name: a, annotations: {'x y': a}", "name: a, annotations: {Example.com/x: a}",
        )
    },
}  # fmt: skip
"""Name of the case -> text of the file."""
