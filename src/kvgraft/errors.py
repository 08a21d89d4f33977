"""One tree of errors: what went wrong, where, and what to do about it.

Every error that kvgraft raises on purpose is a `KvgraftError`. Each class fixes three things a
caller can rely on: a `code` (stable, for programs), an `exit_status` (for the command line) and an
`http_status` (for servers). `docs/cli.md` lists the exit statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Exit statuses. 0 is success, 1 means "the check ran and its answer is no".
EXIT_FAILED_CHECK = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_MODEL = 4
EXIT_MISSING_EXTRA = 5
EXIT_STORE = 6
EXIT_ARTIFACT = 7
EXIT_LIMIT = 8
EXIT_INTERNAL = 9
EXIT_INTERRUPTED = 130


class KvgraftError(Exception):
    """Base class. `what` happened, `where` (a path, a key, a line), and `hint`: what to do."""

    code = "internal"
    exit_status = EXIT_INTERNAL
    http_status = 500

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" [{self.where}]"
        if self.hint:
            text += f" -> {self.hint}"
        return text

    def as_dict(self) -> dict[str, str]:
        """The error as plain data, for `--json` and HTTP bodies."""
        return {"code": self.code, "what": self.what, "where": self.where, "hint": self.hint}


# --- what the user gave ---------------------------------------------------------------------


class UsageError(KvgraftError):
    """An option or argument is unusable."""

    code, exit_status, http_status = "usage", EXIT_USAGE, 400


class RelocationRefused(KvgraftError):
    """A state was to be used at another place than its own without the caller's word for it, or
    without a measurement of what that costs."""

    code, exit_status, http_status = "relocation_refused", EXIT_USAGE, 400


class InputError(KvgraftError):
    """Input data is unusable: a file, a line of it, a prompt."""

    code, exit_status, http_status = "bad_input", EXIT_INPUT, 400


class UnsupportedContent(InputError):
    """A request holds what the model cannot take, such as images or tools."""

    code = "unsupported_content"


class ContextTooLong(KvgraftError):
    """A prompt does not fit the model's context."""

    code, exit_status, http_status = "context_too_long", EXIT_LIMIT, 413


class LimitExceeded(KvgraftError):
    """A cap of `kvgraft.limits` would be passed."""

    code, exit_status, http_status = "limit_exceeded", EXIT_LIMIT, 413


# --- models and engines ---------------------------------------------------------------------


class UnknownModel(KvgraftError):
    """No model goes by that name, or nothing is at that path."""

    code, exit_status, http_status = "unknown_model", EXIT_MODEL, 404


class UnreadableModel(KvgraftError):
    """Model files are there but cannot be loaded: cut short, damaged, or of an unknown kind."""

    code, exit_status, http_status = "unreadable_model", EXIT_MODEL, 422


class DownloadFailed(KvgraftError):
    """A model could not be fetched, or came with another digest than the pinned one."""

    code, exit_status, http_status = "download_failed", EXIT_MODEL, 502


class MissingExtra(KvgraftError):
    """An optional dependency is not installed."""

    code, exit_status, http_status = "missing_extra", EXIT_MISSING_EXTRA, 501


class UnsupportedModel(KvgraftError):
    """The model has a layer kind this version does not carry; refused by name."""

    code, exit_status, http_status = "unsupported_model", EXIT_MODEL, 422


class EngineError(KvgraftError):
    """An engine broke its own contract: wrong shape, wrong length, not a finite number."""

    code, exit_status, http_status = "engine", EXIT_INTERNAL, 500


class EndpointError(KvgraftError):
    """A model behind a server cannot be used: no answer, an error, or an answer that is none.
    `status` is the HTTP status, None where it came to none."""

    code, exit_status, http_status = "endpoint", EXIT_MODEL, 502
    status: int | None = None

    def __init__(self, what: str, *, status: int | None = None, where: str = "", hint: str = ""):
        super().__init__(what, where=where, hint=hint)
        self.status = status


# --- artifacts ------------------------------------------------------------------------------


class ArtifactError(KvgraftError):
    """An artifact cannot be used. Base of everything `blob` and the chunk store refuse."""

    code, exit_status, http_status = "artifact", EXIT_ARTIFACT, 422


class FormatError(ArtifactError):
    """Bytes do not follow `docs/FORMAT.md`."""

    code = "artifact_format"


class UnsupportedVersion(FormatError):
    """The format version is not one this release reads."""

    code = "artifact_version"


class Truncated(ArtifactError):
    """Fewer (or more) bytes than the format says."""

    code = "artifact_truncated"


class DigestMismatch(ArtifactError):
    """Bytes are not those that were written."""

    code = "artifact_digest"


class WrongAddress(ArtifactError):
    """A well-formed object, but not the one that was asked for: another key, other token ids."""

    code = "artifact_address"


class FingerprintMismatch(ArtifactError):
    """Made by another engine, model, dtype or machine class. `fields` names what differs."""

    code = "fingerprint_mismatch"

    def __init__(self, what: str, *, fields: tuple[str, ...], where: str = "", hint: str = ""):
        super().__init__(what, where=where, hint=hint)
        self.fields = fields


class Drift(ArtifactError):
    """One address, two different raw digests: the engine is not as deterministic as declared."""

    code = "drift"


# --- stores and the library -----------------------------------------------------------------


class StoreError(KvgraftError):
    """A store cannot do what was asked."""

    code, exit_status, http_status = "store", EXIT_STORE, 500


class StoreFull(StoreError):
    """No space left where the store writes. Nothing partial was made visible."""

    code, http_status = "store_full", 507


class StoreReadOnly(StoreError):
    """The store's folder cannot be written."""

    code, http_status = "store_read_only", 403


class BlobNotFound(StoreError):
    """No blob has that name."""

    code, http_status = "blob_not_found", 404


class NameRefused(StoreError):
    """A blob name that is not one: path separators, `..`, absolute, a symlink in its place."""

    code, http_status = "blob_name_refused", 400


class RecordNotFound(KvgraftError):
    """The library has no such deposit."""

    code, exit_status, http_status = "record_not_found", EXIT_INPUT, 404


class DepositRevoked(KvgraftError):
    """What a deposit says is not trusted any more, and nothing may go on from it."""

    code, exit_status, http_status = "deposit_revoked", EXIT_INPUT, 410


class DepositExpired(KvgraftError):
    """What a deposit says held until a time that is over."""

    code, exit_status, http_status = "deposit_expired", EXIT_INPUT, 410


class VerifierError(KvgraftError):
    """A verifier could not reach a verdict: it crashed, ran out of time or memory, or is unknown.

    This is never a pass."""

    code, exit_status, http_status = "verifier", EXIT_INTERNAL, 500


class SandboxUnavailable(KvgraftError):
    """This system cannot isolate a program in the ways that were asked for. `missing` names them;
    nothing was run."""

    code, exit_status, http_status = "sandbox_unavailable", EXIT_MISSING_EXTRA, 501
    missing: tuple[str, ...] = ()

    def __init__(self, what: str, *, missing: tuple[str, ...], where: str = "", hint: str = ""):
        super().__init__(what, where=where, hint=hint)
        self.missing = missing


class CheckFailed(KvgraftError):
    """A check ran to its end and its answer is no (`prove`, `store check`, `doctor`)."""

    code, exit_status, http_status = "check_failed", EXIT_FAILED_CHECK, 409


class BelowMinimum(CheckFailed):
    """There is no answer as good as the caller demands. `details` says what there is, without what
    it says: how, grade, reasons, cost."""

    code = "below_minimum"
    details: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, what: str, *, details: Mapping[str, Any], where: str = "", hint: str = ""
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.details = details


def revive(data: Mapping[str, str]) -> KvgraftError:
    """The error that another process told with `as_dict`, of its own class where that is known."""
    kinds = [KvgraftError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = next((kind for kind in kinds if kind.code == data["code"]), KvgraftError)
    error = found.__new__(found)
    KvgraftError.__init__(error, data["what"], where=data["where"], hint=data["hint"])
    error.code = data["code"]
    return error
