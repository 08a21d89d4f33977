"""Validates JSON by a schema. Runs in a worker process only: see `worker_main`."""

from __future__ import annotations

import importlib
import json
from typing import Any

_REASON_CHARS = 300
# jsonschema carries no types that mypy follows here.
_jsonschema: Any = None
_registry: Any = None


def load() -> Any:
    """Imports what is heavy, and returns the handler of the worker."""
    global _jsonschema, _registry
    _jsonschema = importlib.import_module("jsonschema")
    # Empty, but for the drafts themselves: any other reference that leads out of a schema resolves
    # to nothing.
    _registry = importlib.import_module("referencing").Registry()
    return validate


def validate(request: dict[str, Any]) -> dict[str, Any]:
    """`bad_schema`: why the schema is none; else `reason`: why the text is not valid, or None."""
    schema = request["schema"]
    kind = _jsonschema.validators.validator_for(schema, default=_jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except _jsonschema.SchemaError as error:
        return {"bad_schema": str(error.message)[:_REASON_CHARS]}
    validator = kind(schema, registry=_registry)
    try:
        errors = validator.iter_errors(json.loads(request["text"]))
        worst = _jsonschema.exceptions.best_match(errors)
    except Exception as unresolved:
        if "Referencing" not in type(unresolved).__name__:
            raise
        return {"bad_schema": f"a reference leads nowhere: {unresolved}"[:_REASON_CHARS]}
    if worst is None:
        return {"reason": None}
    return {"reason": f"at {worst.json_path[:100]}: {worst.message}"[:_REASON_CHARS]}
