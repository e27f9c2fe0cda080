"""Models of the Hugging Face Hub: its client lists them, their bytes come as any file over https.

The client's own downloads begin anew when they are cut, and these go on.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from batchedapi_serving.model_source.download import (
    Digest,
    DownloadError,
    RemoteFile,
    Snapshot,
    TransientError,
    is_in,
    placed,
)
from batchedapi_serving.model_source.https import TRY_AGAIN, read_range

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

_COMMIT: Final = re.compile("[0-9a-f]{40}")
_FAILURE_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the Hub, or what is in it at a path."""

    repository: str
    """ORG/NAME."""
    revision: str | None
    """Branch, tag or commit; None: the default branch."""
    path: str
    """A file or a folder of it, without a slash at either end; empty: all."""

    @property
    def pinned(self) -> str | None:
        """The commit, where the address names one: its content never changes."""
        return self.revision if _COMMIT.fullmatch(self.revision or "") else None

    def snapshot(self) -> Snapshot:
        """The files of the revision's commit.

        HF_TOKEN, HF_ENDPOINT and what else the client reads come from the environment.

        Raises:
            DownloadError: nothing there, not allowed, or no client.
            TransientError: the Hub does not answer, or is unwell.
        """
        try:
            from huggingface_hub import HfApi, get_token  # noqa: PLC0415 - most models lie elsewhere
            from huggingface_hub.hf_api import RepoFile  # noqa: PLC0415
        except ImportError as error:
            raise DownloadError.without_client("hf", "huggingface_hub") from error
        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
        api = HfApi(endpoint, library_name="batchedapi")
        with _told():
            asked = self.pinned or api.model_info(self.repository, revision=self.revision).sha
            commit = str(asked)
            tree = api.list_repo_tree(self.repository, revision=commit, recursive=True)
            found = [
                one for one in tree if isinstance(one, RepoFile) and is_in(one.path, self.path)
            ]
        if not found:
            raise DownloadError(f"the repository has no file {self.path or 'at all'}")
        token = get_token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        files = sorted(found, key=lambda one: one.path)
        return Snapshot(commit, tuple(self._file(api, commit, one, headers) for one in files))

    def _file(
        self, api: "HfApi", commit: str, found: "RepoFile", headers: Mapping[str, str]
    ) -> RemoteFile:
        from huggingface_hub import hf_hub_url  # noqa: PLC0415

        url = hf_hub_url(self.repository, found.path, revision=commit, endpoint=api.endpoint)
        digest = Digest("sha1", found.blob_id, b"blob %d\0" % found.size)
        if found.lfs is not None:
            digest = Digest("sha256", found.lfs.sha256)
        return RemoteFile(
            placed(found.path, self.path, self.repository),
            found.size,
            partial(read_range, url, headers),
            digest=digest,
        )


@contextmanager
def _told() -> Iterator[None]:
    """Tell errors of the client.

    Its classes of errors of the network are those of an HTTP library that has changed before.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        yield
    except HFValidationError as error:
        raise DownloadError(str(error)) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        text = f"{status}: {' '.join(str(error).split())[:_FAILURE_CHARACTERS]}"
        if status in TRY_AGAIN:
            raise TransientError(text) from error
        raise DownloadError(
            f"{text}; for a private or gated repository set HF_TOKEN from a Secret"
        ) from error
    except Exception as error:
        raise TransientError(f"{type(error).__name__}: {error}") from error
