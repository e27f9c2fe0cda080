"""What a translation says that it did not take over, and what it makes of text formats."""

import pytest

from batchedapi_core.manifest import parse_api
from batchedapi_serving.migrating import bentoml, cortex, kserve, torchserve, triton
from batchedapi_serving.migrating.migration import MigrateError, Project
from elsewhere import PROJECTS

TAKEN = {one.name: one for one in PROJECTS if one.refused is None}
TRANSLATORS = {
    "cortex": cortex.migrate,
    "bentoml": bentoml.migrate,
    "triton": triton.migrate,
    "torchserve": torchserve.migrate,
    "kserve": kserve.migrate,
}


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("cortex text-generator", ["compute.inf"]),
        ("triton scaled, two instances", ["parameters"]),
        ("torchserve mnist", ["inference_address"]),
        ("bentoml 1.4 summarization", ['summarize: body {"texts": [...]}']),
        ("bentoml 1.4 arrays of any shape", ['total: body {"x": [...]}']),
        ("kserve sklearn-iris with batcher", ["storageUri: file://FOLDER/model"]),  # no path
    ],
)
def test_what_is_not_taken_over_is_told_with_a_remedy(name: str, places: list[str]) -> None:
    """A line that vanishes without a word is found in production."""
    project = TAKEN[name]

    made = TRANSLATORS[name.split(maxsplit=1)[0]](Project("here", project.file, project.files))

    assert places == [note.place for note in made.notes]
    assert all(note.reason and note.remedy for note in made.notes)
    assert parse_api(dict(made.manifest))


def test_a_type_that_no_list_is_is_told() -> None:
    """What JSON has is a list; whoever wants a frame makes it."""
    code = """import bentoml
import pandas as pd

@bentoml.service
class Prices:
    @bentoml.api(batchable=True)
    def price(self, rows: pd.DataFrame) -> list[float]:
        return rows.sum(axis=1).tolist()
"""
    made = bentoml.migrate(Project("here", "service.py", {"service.py": code}))

    assert ['price: body {"rows": [...]}', "price: rows: DataFrame"] == [
        n.place for n in made.notes
    ]


def test_the_text_format_knows_lists_comments_and_messages_in_both_brackets() -> None:
    """As protobuf's own reader does."""
    text = 'a: 1 # one\nb < c: "x" > d [ 1, 2 ]\nd: 3\ne { f: true }'

    assert {"a": 1, "b": {"c": "x"}, "d": [1, 2, 3], "e": {"f": True}} == (
        triton.parse_text_format(text)
    )


@pytest.mark.parametrize("text", ["a {", "a: [1", "{", "a: }", "a: \x00"])
def test_text_that_is_no_message_is_refused(text: str) -> None:
    """With the line, rather than half of it taken over."""
    with pytest.raises(MigrateError, match="expected"):
        triton.parse_text_format(text)
