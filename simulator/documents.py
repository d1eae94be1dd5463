"""Users' documents (YAML, JSON) held against a pydantic schema; what does not fit is one line."""

from __future__ import annotations

from typing import TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from dtgym.simulator.errors import InvalidInput

Schema = TypeVar("Schema", bound=BaseModel)


class Document(BaseModel):
    """Base of a schema: no unknown field, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True)


def read_yaml(text: str, *, source: str) -> object:
    """Parses YAML; `source` names the file in messages.

    Raises:
        InvalidInput: Not YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error


def validated(schema: type[Schema], content: object, *, source: str) -> Schema:
    """Holds parsed content against a schema.

    Raises:
        InvalidInput: The first thing that does not fit: file, field, expectation.

    Examples:
        >>> class Point(Document):
        ...     x: int
        >>> validated(Point, {"x": "left"}, source="point.yaml")
        Traceback (most recent call last):
        dtgym.simulator.errors.InvalidInput: point.yaml: x: must be a valid integer
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        message = first["msg"].replace("Input should be", "must be")
        raise InvalidInput(f"{source}: {field}: {message}") from error
