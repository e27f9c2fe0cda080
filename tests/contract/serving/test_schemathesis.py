"""Requests generated from our own OpenAPI document never meet a status that it does not name.

A few hundred cases here; BATCHEDAPI_SCHEMATHESIS_CASES=50000 for as many as a release gets.
"""

import os
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from raw_http import HOST
from serving import Replica

CASES: Final = int(os.environ.get("BATCHEDAPI_SCHEMATHESIS_CASES", "400"))
TIMEOUT_HEADER: Final = "X-Request-Timeout-Ms"
PATIENT_MS: Final = 10_000
CODE: Final = """
    from batchedapi_serving import Tensor, batched, endpoint

    class Model:
        @batched(inputs=Tensor("FP32", [2]), outputs=Tensor("FP64", [1]), max_batch_size=8)
        def predict(self, x):
            return x.sum(axis=1, keepdims=True, dtype="f8")

        @batched(
            inputs={"ids": Tensor("INT64", ["tokens"]), "mask": Tensor("BOOL", ["tokens"])},
            outputs={"length": Tensor("INT64", [])},
        )
        def tokens(self, batch):
            return {"length": batch["mask"].sum(axis=1)}

        @batched(example={"id": 1})
        def items(self, items):
            return items

        @endpoint
        def call(self, payload, query_params, headers):
            return payload if not isinstance(payload, bytes) else payload.decode("latin-1")
"""
CHECKS: Final = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
STEPS: Final = settings(
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def operations(replica: Replica) -> list[Any]:
    """The operations that /openapi.json describes."""
    schema = schemathesis.openapi.from_url(f"http://{HOST}:{replica.port}/openapi.json")
    found = list(schema.get_all_operations())
    assert [] == [result for result in found if not isinstance(result, Ok)]
    return [result.ok() for result in found if isinstance(result, Ok)]


def _give_time(case: Any) -> None:
    """A client that asks for an answer within a millisecond gets the 504 it asked for."""
    headers = case.headers or {}
    wanted = str(headers.get(TIMEOUT_HEADER, ""))
    if wanted.isdecimal() and int(wanted) < PATIENT_MS:
        headers[TIMEOUT_HEADER] = str(PATIENT_MS)


def test_every_route_of_every_method_is_described(operations: list[Any]) -> None:
    """Else the fuzzing below would pass for want of anything to fuzz."""
    paths = {operation.path for operation in operations}

    methods = ("predict", "tokens", "items", "call")
    assert {"/predict", "/api", "/v2", "/v2/health/ready", "/v2/models/api"} < paths
    assert {f"/api/{name}" for name in methods} < paths
    assert {f"/v1/models/api.{name}:predict" for name in methods} < paths
    assert {f"/v2/models/api.{name}/infer" for name in methods} < paths


def test_no_generated_request_meets_an_undocumented_status(
    replica: Replica, operations: list[Any]
) -> None:
    """Valid and invalid bodies, on every route: no 5xx, and nothing that /docs does not say."""
    per_operation = max(1, CASES // len(operations))
    asked = 0
    for operation in operations:
        modes = schemathesis.GenerationMode
        positive = operation.as_strategy(generation_mode=modes.POSITIVE)
        negative = operation.as_strategy(generation_mode=modes.NEGATIVE)
        strategies = [positive, negative] if operation.body else [positive]

        @settings(STEPS, max_examples=per_operation)
        @given(case=st.one_of(strategies))
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            _give_time(case)
            case.call_and_validate(checks=CHECKS)

        ask()

    assert asked >= len(operations)
    assert 0 == replica.metrics()["batchedapi_process_restarts_total{role=web}"]
    assert 0 == replica.metrics()["batchedapi_process_restarts_total{role=model}"]
