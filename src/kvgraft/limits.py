"""Every cap in one place, with its unit in its name and the reason beside it."""

from __future__ import annotations

# --- format (docs/FORMAT.md states these; a test compares) -----------------------------------
OBJECT_HEADER_BYTES = 256
PACK_ALIGN_BYTES = 4096  # direct I/O and mmap readers need page alignment
MAX_PAYLOAD_HEADER_BYTES = 4 * 1024 * 1024  # a JSON header of 500 layers is about 100 KiB
MAX_OBJECT_BYTES = 64 * 1024**3
MAX_PACK_OBJECTS = 65_536
MAX_TENSOR_DIMS = 6
MAX_LAYERS = 4_096

# --- requests ---------------------------------------------------------------------------------
MAX_PROMPT_BYTES = 64 * 1024 * 1024
MAX_PLAN_CALLS = 1_000_000
MAX_CONTEXT_TOKENS = 1 << 24  # of a model that has no positions to run out of
MAX_ANSWER_TOKENS = 64  # a replay decodes at most this many tokens
MAX_ATTEMPTS = 1_024
MAX_NEW_TOKENS = 131_072

# --- engines ----------------------------------------------------------------------------------
MODEL_TRIAL_SECONDS = 600.0  # to load a file from a slow disk and compute 32 tokens

# --- problem files ----------------------------------------------------------------------------
MAX_PROBLEM_LINE_BYTES = 1024 * 1024
MAX_PROBLEMS = 1_000_000

# --- verifiers ---------------------------------------------------------------------------------
MATH_VERIFY_SECONDS = 10.0
MATH_VERIFY_MEMORY_BYTES = 2 * 1024**3
MAX_ANSWER_CHARS = 4_096
MAX_TRACE_CHARS = 4 * 1024 * 1024
COMMAND_SECONDS = 30.0
MAX_EVIDENCE_CHARS = 8_192
MAX_EVIDENCE_TEXT_CHARS = 512  # a longer text in evidence gives way to its digest and its start
MAX_MATH_CHARS = 16_384  # each side of a comparison; an integer of 5,000 digits has room
REGEX_SECONDS = 2.0
WORKER_START_SECONDS = 60.0  # importing sympy takes a second, on a busy machine many
GUARD_SECONDS = 30.0  # beyond a command's limit, for its guard to end; a few milliseconds are usual

# --- stores ------------------------------------------------------------------------------------
MAX_BLOB_NAME_CHARS = 200
MAX_FIND_KEYS = 256  # SQLite takes 999 values and more; one question for 65,536 tokens
READ_SLICE_BYTES = 8 * 1024 * 1024

# --- library -----------------------------------------------------------------------------------
MAX_COMBINING_RUN = 1_024  # composing sorts each run by insertion: time grows with its square
MAX_ADDRESS_FIELD_BYTES = 64 * 1024  # a stop string, a tool choice; the system text is a prompt
MAX_LIBRARY_JSON_CHARS = 64 * 1024  # cost, the rest of a request, an audit or run detail
MAX_LIBRARY_NAME_CHARS = 512  # model, verifier, source, keys of runs
MAX_LISTED_DEPOSITS = 10_000
LIBRARY_BUSY_SECONDS = 30.0  # how long a writer waits for another process's transaction
LIBRARY_CACHE_BYTES = 64 * 1024 * 1024  # holds the look-up tree of about 500,000 deposits
