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


@pytest.mark.parametrize(
    ("annotation", "told", "called"),
    [
        ("pd.DataFrame", "DataFrame", "(items)"),
        ("list[PIL.Image.Image]", "Image", "(items)"),
        ("Annotated[torch.Tensor, DType('float32'), Shape((-1, 2))]", "Tensor", "(items)"),
        ("list[list[float]]", None, "(items)"),
        ("list[dict[str, int]]", None, "(items)"),
        ("np.ndarray", None, "(numpy.asarray(items))"),
        ("'np.ndarray'", None, "(numpy.asarray(items))"),
        ("np.ndarray | None", None, "(numpy.asarray(items))"),
        ("NDArray[np.float64]", None, "(numpy.asarray(items))"),
        ("Annotated[np.ndarray, DType('float32'), Shape((-1, 2))]", None, "(items)"),
    ],
)
def test_rows_are_given_as_the_method_wants_them_or_it_is_told(
    annotation: str, told: str | None, called: str
) -> None:
    """JSON has lists, and tensors come as arrays; whoever wants a frame makes it."""
    code = f"""import bentoml

@bentoml.service
class Prices:
    @bentoml.api(batchable=True)
    def price(self, rows: {annotation}) -> list[float]:
        return [1.0 for _ in rows]
"""
    made = bentoml.migrate(Project("here", "service.py", {"service.py": code}))

    body, *rest = [note.place for note in made.notes]
    assert body == 'price: body {"rows": [...]}'
    assert rest == ([] if told is None else [f"price: rows: {told}"])
    assert f"super().price{called}" in made.files["batched_model.py"]


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
