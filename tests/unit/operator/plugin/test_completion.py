"""Completions offered at Tab, as kubectl reads them from `kubectl_complete-batchedapi`."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from tests.unit.operator.plugin.test_command_line import Cluster, apiserver

from batchedapi_operator import plugin
from batchedapi_operator.plugin.__main__ import main, print_completions

__all__ = ["apiserver"]

APIS = "/apis/batchedapi.dev/v1alpha1/namespaces/{}/batchedapis"


@dataclass
class Names(Cluster):
    """Lists of a cluster by path; others are refused."""

    lists: dict[str, list[object]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """As the apiserver does."""
        items = self.lists.get(request.path)
        if items is None:
            return web.json_response({"kind": "Status"}, status=403)
        return web.json_response({"kind": "List", "items": items})


def named(*names: str) -> list[object]:
    """Objects."""
    return [{"metadata": {"name": name}} for name in names]


@pytest.fixture
def cluster() -> Names:
    """Two namespaces with APIs."""
    return Names(
        {},
        lists={
            "/api/v1/namespaces": named("demo", "default"),
            APIS.format("demo"): named("iris", "sleepy"),
            APIS.format("default"): named("other"),
        },
    )


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["st"], ["status\tShow the BatchedAPI NAME on one screen."]),
        (["status", ""], ["iris", "sleepy"]),
        (["status", "-n", "default", ""], ["other"]),
        (["why", "sl"], ["sleepy"]),
        (["status", "-n", "de"], ["demo", "default"]),
        (["why", "iris", "--context", "o"], ["other"]),
        (["why", "--context", "other", "-n", ""], ["demo", "default"]),
        (["why", "--context", "other", ""], []),
        (["why", "-n", "forbidden", ""], []),
        (["why", "--context", "none", ""], []),
        (["status", "-o", ""], ["text", "json"]),
    ],
    ids=" ".join,
)
def test_tab_offers_what_may_come_next(
    words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Names are those that the user may list, of the namespace and context that were written."""
    print_completions(main, words)

    assert ("".join(f"{line}\n" for line in [*expected, ":4"]), "") == tuple(capsys.readouterr())


def test_nothing_written_offers_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Kubectl gives an empty word; who runs it by hand gives none."""
    print_completions(main, [])

    told = [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert ["cost", "history", "promote", "rollback", "status", "ui", "whatif", "why", ":4"] == told


@pytest.mark.parametrize("run", [plugin.main, plugin.complete], ids=["command", "completion"])
def test_what_is_not_installed_is_told_with_what_brings_it(
    run: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install batchedapi` alone puts both on the PATH."""
    is_missing(monkeypatch, "kubernetes.client")

    with pytest.raises(SystemExit) as ended:
        run()

    told = str(ended.value)
    assert "the Python package 'kubernetes' is not installed" in told
    assert "pip install 'batchedapi[operator]'" in told


def test_a_module_of_ours_that_is_missing_is_a_broken_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra would not bring it."""
    is_missing(monkeypatch, "batchedapi_core.contract")

    with pytest.raises(ModuleNotFoundError):
        plugin.main()


def is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever is imported needs that module."""

    def import_module(_module: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(plugin.importlib, "import_module", import_module)
