"""A model that a URI names is there before user code runs, or the start fails and says why."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificates
from object_store import KEY, REGION, ROLE, SECRET, ObjectStore, running_store
from raw_http import ask
from serving import end_replica, running_replica, start_replica, write_manifest

CODE = """
    from pathlib import Path
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.path = context.model_path
            self.text = None if self.path is None else Path(self.path).read_text()

        @batched(example=0)
        def predict(self, items):
            return [[self.path, self.text]] * len(items)
"""


def manifest_with(folder: Path, model: dict[str, Any] | None) -> Path:
    """Two processes, so that both find it."""
    predictor = {"processesPerReplica": 2, **({} if model is None else {"model": model})}
    return write_manifest(folder, CODE, {"predictor": predictor})


async def test_a_file_is_used_in_place(tmp_path: Path) -> None:
    """C02: context.model_path is the file itself, with its digest checked."""
    weights = tmp_path / "weights.txt"
    weights.write_text("w")
    model = {"uri": f"file://{weights}", "sha256": hashlib.sha256(b"w").hexdigest()}
    with running_replica(tmp_path, ["-f", str(manifest_with(tmp_path, model))]) as replica:
        answer = (await ask(replica.port, 0)).json()

    assert [str(weights), "w"] == answer


async def test_without_a_model_there_is_no_path(tmp_path: Path) -> None:
    """Nothing is fetched."""
    with running_replica(tmp_path, ["-f", str(manifest_with(tmp_path, None))]) as replica:
        answer = (await ask(replica.port, 0)).json()

    assert [None, None] == answer


def store_environment(store: ObjectStore, **more: str) -> dict[str, str]:
    """The variables of `predictor.env` for a store other than Amazon's."""
    return {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_REGION": REGION,
        "no_proxy": "localhost,127.0.0.1",
        **more,
    }


async def answer_of_a_bucket(folder: Path, environment: dict[str, str]) -> str:
    """The answer of the model from the store, in a replica with this environment."""
    manifest = manifest_with(folder, {"uri": "s3://models/v1/weights.txt"})
    with running_replica(folder, ["-f", str(manifest)], environment) as replica:
        answer: list[str] = (await ask(replica.port, 0)).json()
    return answer[1]


async def test_a_bucket_is_read_with_the_keys_of_a_secret(tmp_path: Path) -> None:
    """They come as environment variables, and the store checks what is signed with them."""
    with running_store() as store:
        store.objects["v1/weights.txt"] = b"from a bucket"
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

        answer = await answer_of_a_bucket(tmp_path, store_environment(store, **keys))

    assert "from a bucket" == answer


async def test_a_bucket_is_read_with_a_projected_identity(tmp_path: Path) -> None:
    """IRSA: the token of a service account, in a file, is exchanged for a role's keys."""
    certificates = make_certificates(tmp_path)
    token = tmp_path / "token"
    token.write_text("of the service account")
    with running_store(certificates.server) as store:
        store.objects["v1/weights.txt"] = b"from a bucket"
        store.trusts = "of the service account".__eq__
        identity = {
            "AWS_ENDPOINT_URL_STS": store.url,
            "AWS_ROLE_ARN": ROLE,
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "SSL_CERT_FILE": str(certificates.authority),
        }

        answer = await answer_of_a_bucket(tmp_path, store_environment(store, **identity))

    assert "from a bucket" == answer


async def test_a_bucket_is_read_with_the_identity_of_an_agent_on_the_node(tmp_path: Path) -> None:
    """EKS Pod Identity: an agent gives keys for the token."""
    token = tmp_path / "token"
    token.write_text("of the service account")
    with running_store() as store:
        store.objects["v1/weights.txt"] = b"from a bucket"
        store.trusts = "of the service account".__eq__
        agent = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{store.url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }

        answer = await answer_of_a_bucket(tmp_path, store_environment(store, **agent))

    assert "from a bucket" == answer


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"uri": "file:///no/such/weights"}, "DownloadFailed: .*no file or folder"),
        ({"uri": "file:///etc/hostname", "sha256": "0" * 64}, "DigestMismatch: .*expected 000"),
        ({"uri": "https://localhost:1/w"}, "DownloadFailed: .*https://localhost:1/w"),
    ],
    ids=["missing", "digest", "refused"],
)
def test_a_model_that_is_not_there_fails_the_start(
    tmp_path: Path, model: dict[str, Any], message: str
) -> None:
    """C05: with the reason for the ModelLoaded condition, before any user code runs."""
    replica = start_replica(tmp_path, ["-f", str(manifest_with(tmp_path, model))])

    code = replica.process.wait(60)
    end_replica(replica)

    last = replica.text().strip().splitlines()[-1]
    assert code == 1
    assert last.startswith("batchedapi: ")
    with pytest.raises(LookupError, match=message):
        raise LookupError(last)
    assert "model loaded" not in replica.text()


async def test_a_stop_while_a_model_is_being_fetched_ends_at_once(tmp_path: Path) -> None:
    """S14: the server does not answer, and is asked again after a wait."""
    manifest = manifest_with(tmp_path, {"uri": "https://localhost:1/weights"})
    replica = start_replica(tmp_path, ["-f", str(manifest)])
    try:
        replica.wait_for(lambda: "download failed" in replica.text(), "not asked yet")
        code = replica.stop(seconds=4)
    finally:
        end_replica(replica)

    assert code == 0
