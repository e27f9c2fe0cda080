"""Each block of README, docs and examples is run or says why not; how one is read and compared."""

import json
import re
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

from batchedapi_core.manifest import ManifestError
from pages import (
    ROOT,
    Block,
    Fate,
    File,
    Hidden,
    PageError,
    blocks,
    commands,
    manifests,
    pages,
    prints_as_shown,
    read_as_manifest,
    shown_by_prints,
    steps,
)

BLOCKS: Final = [block for page in pages() for block in blocks(page)]
MANIFESTS: Final = [
    block
    for block in BLOCKS
    if block.fate is Fate.RUN and block.language == "yaml" and block.saved is None
]
TEST: Final = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")


def test_every_block_is_run_read_or_marked() -> None:
    """A block that nothing runs is wrong sooner or later: its mark has a reason."""
    unmarked = [one for one in BLOCKS if one.fate not in {Fate.RUN, Fate.PICTURE}]

    assert [] == [block.place for block in unmarked if not block.reason]


def test_the_test_that_runs_or_reads_a_block_exists() -> None:
    """It may have been renamed."""
    for block in (one for one in BLOCKS if one.fate in {Fate.BY_TEST, Fate.READ}):
        name = TEST.fullmatch(block.reason)

        assert name, f"{block.place}: expected FILE::TEST, got {block.reason}"
        assert f"def {name[2]}(" in (ROOT / name[1]).read_text("utf-8"), block.place


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda block: block.place)
def test_a_manifest_of_a_page_is_taken(block: Block) -> None:
    """Whole, or completed with what every manifest has."""
    read_as_manifest(block)


VALUES: Final = [
    block
    for block in BLOCKS
    if block.reason.endswith("::test_values_of_a_page_are_taken_by_the_chart")
]


@pytest.mark.parametrize("block", VALUES, ids=lambda block: block.place)
def test_values_of_a_page_are_taken_by_the_chart(block: Block) -> None:
    """By the schema that Helm judges them by."""
    schema = json.loads((ROOT / "charts/batchedapi/values.schema.json").read_text("utf-8"))

    jsonschema_rs.validate(schema, yaml.safe_load(block.text))


PAGE: Final = """\
# Heading

<!-- file: model.py
class Model:
    ...
-->
```python
x = 1
y = 2
```

<!-- run: batchedapi serve model:Model -->

Prose.

<!-- file: rows.json
[1]
-->
<!-- figures vary -->
```console
$ curl localhost:8080
1
```
<!-- not run: needs a cluster -->
```sh
kubectl get pods
```
<!-- run by tests/a.py::test_b -->
```promql
up
```
<!-- read by tests/a.py::test_c -->
```python
def f()
```
```text
picture
```
"""


def test_a_page_is_read_in_its_order() -> None:
    """Files and commands of its own are among the blocks."""
    saved = File("model.py", "class Model:\n    x = 1\n    y = 2\n")
    expected = [
        Block("page.md", 7, "python", "x = 1\ny = 2\n", saved=saved),
        Hidden("batchedapi serve model:Model"),
        File("rows.json", "[1]\n"),
        Block("page.md", 20, "console", "$ curl localhost:8080\n1\n", figures_vary=True),
        Block("page.md", 25, "sh", "kubectl get pods\n", mark="not run: needs a cluster"),
        Block("page.md", 29, "promql", "up\n", mark="run by tests/a.py::test_b"),
        Block("page.md", 33, "python", "def f()\n", mark="read by tests/a.py::test_c"),
        Block("page.md", 36, "text", "picture\n"),
    ]

    found = steps("page.md", PAGE)

    assert expected == found
    assert [Fate.RUN, Fate.RUN, Fate.NOT_RUN, Fate.BY_TEST, Fate.READ, Fate.PICTURE] == [
        one.fate for one in found if isinstance(one, Block)
    ]
    assert "needs a cluster" == expected[4].reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Run\n\n    make test\n", "page.md: an indented block; put it between fences: make test"),
        ("<!-- figures vary -->\n", "page.md: no block is below the last of its marks"),
        ("<!-- not run: why -->\n", "page.md: no block is below the last of its marks: not run"),
    ],
)
def test_a_page_with_what_nobody_would_run_is_refused(text: str, problem: str) -> None:
    """Otherwise it would be left out in silence."""
    with pytest.raises(PageError, match=re.escape(problem)):
        steps("page.md", text)


@pytest.mark.parametrize("language", ["", "sh", "dockerfile"])
def test_a_block_that_nothing_runs_has_to_say_so(language: str) -> None:
    """With the line, and what may be said."""
    (block,) = steps("page.md", f"\n```{language}\nls\n```\n")

    with pytest.raises(PageError, match=r"page\.md:2: nothing runs a block of .* <!-- not run: "):
        block.fate  # type: ignore[union-attr] # noqa: B018 - asking is what fails


def test_a_command_may_have_several_lines_and_what_it_prints_is_below() -> None:
    """A backslash or an open quotation goes on; a comment may have an apostrophe."""
    text = "$ one \\\n    two\n$ three 'a\n  b'\nout\n\nmore\n$ four  # it's over\n"

    expected = [
        ("one \\\n    two", ""),
        ("three 'a\n  b'", "out\n\nmore\n"),
        ("four  # it's over", ""),
    ]
    assert expected == list(commands(text))


def test_a_console_block_begins_with_a_command() -> None:
    """Output of no command cannot be compared."""
    with pytest.raises(ValueError, match="expected `\\$ ` and a command, got 'out"):
        list(commands("out\n"))


def test_comments_behind_prints_are_what_a_block_of_python_prints() -> None:
    """The way that pages of Python show it."""
    assert "3\n[4, 5]\n" == shown_by_prints("x = 1  # one\nprint(x + 2)  # 3\nprint(y)  # [4, 5]\n")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\nb\n", "a  \nb\n"),
        ("a...c\n", "abbbc\n"),
        ("a\n...\nb\n", "a\nx\ny\nb\n"),
        ("a\n...\n", "a\n"),
        ("[0.98159045,1.453391e-8]\n", "[0.98159049,1.453392e-8]\n"),
        ("{(a|b)*}\n", "{(a|b)*}\n"),
    ],
)
def test_what_is_printed_as_shown(shown: str, printed: str) -> None:
    """Spaces at ends, three dots, and last digits of long numbers."""
    assert prints_as_shown(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\n", "a\nb\n"),
        ("a\nb\n", "a\n"),
        ("a...c\n", "a\nc\n"),
        ("rows 12\n", "rows 13\n"),
        ("0.5\n", "0.50001\n"),
        ("[0.98159045]\n", "[0.98139]\n"),
        ("a.c\n", "abc\n"),
    ],
)
def test_what_is_not_printed_as_shown(shown: str, printed: str) -> None:
    """Everything else has to be the same, short numbers too."""
    assert not prints_as_shown(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("  1   10.38   96  ####\n", "  1    9.1  104  #####\n", True),
        ("t(n) = 10.2 ms + 0.205 ms * n\n", "t(n) = 9 ms + 1.25 ms * n\n", True),
        ("p99 80ms\n", "p90 80ms\n", True),
        ("got 0.318\n", "got -0.022\n", True),
        ("ok 4 rows\n", "WRONG 4 rows\n", False),
        ("a 1\n", "a\n", False),
    ],
)
def test_where_figures_vary_the_words_are_compared(shown: str, printed: str, *, same: bool) -> None:
    """Any number stands for any other, and nothing else does."""
    assert same == prints_as_shown(shown, printed, figures_vary=True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "spec: {compute: {gpu: 1}}",
            {"compute": {"gpu": 1}, "predictor": {"path": "model:Model"}},
        ),
        ("compute: {gpu: 1}", {"compute": {"gpu": 1}, "predictor": {"path": "model:Model"}}),
        ("spec: {predictor: {path: 'a:B'}}", {"predictor": {"path": "a:B"}}),
    ],
)
def test_a_part_of_a_manifest_is_completed(text: str, found: dict[str, Any]) -> None:
    """The written part stays as it is."""
    (manifest,) = manifests(text)

    assert found == manifest["spec"]
    assert "BatchedAPI" == manifest["kind"]


@pytest.mark.parametrize("text", ["data: {a: b}", "- compute", "spec: {}\ncompute: {}"])
def test_what_is_no_part_of_a_manifest_is_refused(text: str) -> None:
    """It is of something else, and its block has to say so."""
    with pytest.raises(ValueError, match="expected a BatchedAPI or a part of one, got"):
        manifests(text)


def test_a_wrong_manifest_of_a_page_is_found() -> None:
    """By the product's own reader."""
    with pytest.raises(ManifestError, match="gpus"):
        read_as_manifest(Block("page.md", 1, "yaml", "compute: {gpus: 1}\n"))
