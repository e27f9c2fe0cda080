"""Rules between fields, written once for the apiserver (CEL) and once, beside it, for Python.

The error text of a CEL rule names only the object the rule sits on, so each message carries the
full path of the field it is about.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from batchedapi_core.manifest.units import INT64, parse_quantity

T = TypeVar("T")
PERCENT: Final = r"^(0|[1-9][0-9]{0,2})%$"
WORDS: Final[dict[str, str]] = {}
"""Messages about a text that does not match a pattern, by the pattern; `worded` fills them."""


def worded(pattern: str, words: str) -> str:
    """The pattern, for a field whose errors say `words` ("expected ...") and not the pattern."""
    WORDS[pattern] = words
    return pattern


LABEL_WORDS: Final = (
    "expected lower-case letters, digits and '-', with a letter or digit at both ends"
)
DNS_WORDS: Final = f"{LABEL_WORDS}, in parts with dots between them"
_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME: Final = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
"""Pattern of a whole name; DNS_WORDS say what it wants."""
REPEATED: Final = "repeated"
"""Type of the error of a member that is there twice; the context has its index."""
STORED: Final = "stored"
"""Key of a validation's context: whether the manifest is one that the apiserver keeps."""
Flag = Annotated[bool, Field(strict=True)]
"""`"true"` in quotes is a text, for the apiserver too."""
Whole = Annotated[int, Field(strict=True)]
"""`"1"` in quotes is a text, and true is no number."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that several fields of one object must meet together."""

    cel: str
    check: Callable[[Any], bool]
    """The same condition over the parsed model; True when it is met."""
    message: str
    """Full path, expectation and remedy, as the user reads it from kubectl and from the laptop."""
    field_path: str
    """JSON path below the object the rule sits on, e.g. `.minReplicas`."""
    reason: str = "FieldValueInvalid"
    new_only: bool = False
    """Younger than manifests that clusters keep: those that are stored already go on."""
    knows_old: bool = False
    """`cel` asks `oldSelf`, which is optional: absent of a new object."""

    def as_validation(self) -> dict[str, str | bool]:
        """The entry of `x-kubernetes-validations`."""
        return {
            "rule": self.cel,
            "message": self.message,
            "fieldPath": self.field_path,
            "reason": self.reason,
            **({"optionalOldSelf": True} if self.knows_old else {}),
        }


def quantity_rule(path: str, written: Callable[[Any], str | None], least: str) -> Rule:
    """The quantity at `path` is absent or at least `least`.

    In CEL a quantity is a text or a number, each compared in its own way.
    """
    member, smallest = f"self.{path.rpartition('.')[2]}", parse_quantity(least)
    text = f"quantity({member}).compareTo(quantity('{least}')) >= 0"

    def check(model: Any) -> bool:
        value = written(model)
        return value is None or parse_quantity(value) >= smallest

    return Rule(
        cel=f"!has({member}) || (type({member}) == string ? {text}"
        f" : {member} >= {math.ceil(smallest)})",
        check=check,
        message=f"{path} must be at least {least}",
        field_path=f".{path.rpartition('.')[2]}",
    )


def not_negative_rule(path: str, written: Callable[[Any], int | str]) -> Rule:
    """The number or percentage at `path` is not below 0; a percentage cannot be."""
    member = f"self.{path.rpartition('.')[2]}"

    def check(model: Any) -> bool:
        value = written(model)
        return isinstance(value, str) or value >= 0

    return Rule(
        cel=f"!has({member}) || type({member}) == string || {member} >= 0",
        check=check,
        message=f"{path} must not be negative",
        field_path=f".{path.rpartition('.')[2]}",
    )


def count_or_word(word: str, most: int) -> PlainValidator:
    """A value is 1 to `most` or `word`; `count_or_word_schema` says it to the apiserver."""

    def check(value: object) -> object:
        if value == word or (type(value) is int and 1 <= value <= most):
            return value
        raise ValueError(f"expected 1 to {most} or {word}, got {value!r:.100}")

    return PlainValidator(check, json_schema_input_type=int | str)


def count_or_word_schema(word: str, most: int) -> Any:
    """The schema of such a field; numbers are bounded by CEL, as a pattern is for text alone."""
    return Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": f"^{word}$",
            "maxLength": len(word),
            "x-kubernetes-validations": [
                {
                    "rule": f"type(self) == string || (int(self) >= 1 && int(self) <= {most})",
                    "message": f"expected 1 to {most} or {word}",
                }
            ],
        }
    )


def count_or_percent(value: object) -> object:
    """A value is a whole number or a percentage; the schema says it to the apiserver."""
    if (type(value) is int and value in INT64) or (
        isinstance(value, str) and re.fullmatch(PERCENT, value)
    ):
        return value
    raise ValueError(f"expected a whole number or a percentage such as 25%, got {value!r:.100}")


def no_two_alike(members: list[T]) -> list[T]:
    """As the apiserver keeps lists of type `set` and `map`."""
    for index, member in enumerate(members):
        if member in members[:index]:
            raise PydanticCustomError(
                REPEATED, "expected each only once, got {member} twice",
                {"member": repr(member), "index": index},
            )  # fmt: skip
    return members


def each_key_once(*names: str) -> Callable[[list[T]], list[T]]:
    """No two members have the same values of the fields `names`: `map_list` in Python."""

    def check(members: list[T]) -> list[T]:
        keys = [tuple(getattr(member, name) for name in names) for member in members]
        no_two_alike([key[0] if len(key) == 1 else key for key in keys])
        return members

    return check


def without_default(schema: JsonDict) -> None:
    """Takes the default out of the schema of a field inside a list.

    kubectl and GitOps tools compare lists whole: a field that the apiserver fills in there would
    be a change at every apply.
    """
    schema.pop("default", None)


def map_list(*keys: str) -> JsonDict:
    """The same in a schema: a list whose members the apiserver tells apart by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [*keys]}


def one_of_rule(path: str, names: Sequence[str]) -> Rule:
    """Exactly one of the fields `names` of the object at `path` is there."""
    there = ", ".join(f"has(self.{name})" for name in names)
    told = f"{', '.join(names[:-1])} and {names[-1]}"

    def check(model: Any) -> bool:
        fields = type(model).model_fields.items()
        found = [name for name, field in fields if field.alias in names]
        return sum(getattr(model, name) is not None for name in found) == 1

    return Rule(
        cel=f"[{there}].filter(x, x).size() == 1",
        check=check,
        message=f"{path} needs exactly one of {told}",
        field_path=f".{names[0]}",
    )


class ManifestModel(BaseModel):
    """Base of every object in a manifest: camelCase outside, unknown fields refused, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid",
        defer_build=True,  # most processes of a replica import the models and parse nothing
        frozen=True,
    )  # fmt: skip

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self, info: ValidationInfo) -> Self:
        stored = (info.context or {}).get(STORED, False)
        for rule in self.rules:
            if not rule.check(self) and not (rule.new_only and stored):
                raise PydanticCustomError(
                    "rule", "{message}", {"message": rule.message, "below": rule.field_path}
                )
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema with the CEL rules of this object."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema["x-kubernetes-validations"] = [rule.as_validation() for rule in cls.rules]
        return schema
