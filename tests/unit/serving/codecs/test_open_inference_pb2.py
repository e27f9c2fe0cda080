"""The committed protobuf classes: the protocol's own, and what protoc makes of our file."""

import operator
import shutil
from pathlib import Path

import pytest
import tritonclient.grpc.model_config_pb2 as configs
import tritonclient.grpc.service_pb2 as theirs

from batchedapi_serving.codecs import open_inference_pb2 as ours
from crds.generate import differences
from crds.generate_grpc import FOLDER, PROTO, ROOT, generated_files

MESSAGES = sorted(ours.DESCRIPTOR.message_types_by_name)


def fields(descriptor: object, prefix: str = "") -> set[tuple[str, int, int, bool]]:
    """(path, number, type, repeated) of every field, those of nested messages included."""
    found = set()
    for field in descriptor.fields:  # type: ignore[attr-defined]  # descriptors have no types
        found.add((prefix + field.name, field.number, field.type, field.is_repeated))
    for nested in descriptor.nested_types:  # type: ignore[attr-defined]  # as above
        found |= fields(nested, f"{prefix}{nested.name}.")
    return found


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_is_the_protocols(name: str) -> None:
    """A number or type that differs would be read as something else, and nobody would say so."""
    mine = fields(ours.DESCRIPTOR.message_types_by_name[name])
    files = [file.DESCRIPTOR.message_types_by_name for file in (theirs, configs)]
    (triton,) = (fields(types[name]) for types in files if name in types)

    assert set() == mine - triton


def test_the_service_has_the_protocols_calls() -> None:
    """Under the protocol's package and name."""
    mine = ours.DESCRIPTOR.services_by_name["GRPCInferenceService"]

    assert "inference.GRPCInferenceService" == mine.full_name
    assert {
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
        "ModelConfig", "ModelStatistics",
    } == set(mine.methods_by_name)  # fmt: skip


@pytest.mark.parametrize("name", ["DataType", "ModelInstanceGroup.Kind"])
def test_every_value_of_an_enum_is_the_protocols(name: str) -> None:
    """As with the fields."""
    mine, triton = (
        operator.attrgetter(name)(module).items()  # enums have no types
        for module in (ours, configs)
    )

    assert triton == mine


def test_a_client_library_can_be_imported_beside_the_classes() -> None:
    """Both declare inference.ModelInferRequest; in protobuf's shared registry the second fails."""
    request = ours.ModelInferRequest(model_name="iris", id="1")

    assert request.DESCRIPTOR.file.pool is not theirs.DESCRIPTOR.pool
    assert "iris" == theirs.ModelInferRequest.FromString(request.SerializeToString()).model_name


def test_the_committed_classes_are_what_protoc_makes() -> None:
    """`make verify` says the same."""
    assert [] == differences(ROOT, generated_files())


def test_a_changed_protocol_is_noticed(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    shutil.copy(ROOT / FOLDER / PROTO, folder)
    path = folder / PROTO
    path.write_text(path.read_text().replace("bool live = 1;", "bool live = 2;"))

    assert differences(ROOT, generated_files(tmp_path))


def test_a_broken_protocol_file_says_where(tmp_path: Path) -> None:
    """protoc's own message has the line."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / PROTO).write_text('syntax = "proto3";\nmessage {')

    with pytest.raises(RuntimeError, match="protoc failed: .*2:9"):
        generated_files(tmp_path)
