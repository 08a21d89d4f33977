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

# --- solving -----------------------------------------------------------------------------------
MAX_RUNGS = 16
MAX_CORRECTION_ROUNDS = 16
MAX_FEEDBACK_CHARS = 512  # what a verifier says to the model, between two attempts
ENERGY_CHECK_SECONDS = 1.0  # a budget in joules is looked at so often; counters need time to move
ENDPOINT_SECONDS = 600.0  # for one reply: a batch of long texts on a slow server
ENDPOINT_CONNECT_SECONDS = 10.0
ENDPOINT_TRIES = 5
MAX_ENDPOINT_PAUSE_SECONDS = 60.0  # between two tries, whatever the server asks for
MAX_ENDPOINT_REPLY_BYTES = 64 * 1024 * 1024

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
SCHEMA_SECONDS = 5.0
SUBSTITUTE_SECONDS = 10.0
WORKER_START_SECONDS = 60.0  # importing sympy takes a second, on a busy machine many
GUARD_SECONDS = 30.0  # beyond a command's limit, for its guard to end; a few milliseconds are usual
CODE_SECONDS = 30.0  # for all tests of one program; each run has the limits of a sandbox
CODE_TOLERANCE = 1e-6
MAX_CODE_TESTS = 1_000
PROGRAM_OUTPUT_BYTES = 64 * 1024  # of a program that prints an answer; the last runs are kept
MAX_PROGRAM_GUESS_CHARS = 65_536  # a longer text without a fence is not tried as Python

# --- sandbox (docs/SANDBOX.md) -------------------------------------------------------------------
SANDBOX_SECONDS = 10.0
SANDBOX_CPU_SECONDS = 10.0
SANDBOX_MEMORY_BYTES = 512 * 1024 * 1024
SANDBOX_FILE_BYTES = 16 * 1024 * 1024
SANDBOX_PROCESSES = 16
SANDBOX_OUTPUT_BYTES = 1024 * 1024
MAX_SANDBOX_SOURCE_BYTES = 1024 * 1024  # models write thousands; the parser takes 100x in memory
SANDBOX_FLOOD_FACTOR = 64  # a program that prints so many times what is kept is ended
SANDBOX_GRACE_SECONDS = 0.5  # beyond the limit, for the guard to end everything before it is ended

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
MAX_VERIFIER_SPEC_CHARS = 16 * 1024  # a pattern, a command line, several verifiers together
MAX_GROUNDS_BYTES = 1024 * 1024  # what a verdict was given on, compressed: some 4 MB of attempts
MAX_GROUNDS_CHARS = 64 * 1024 * 1024  # the same as JSON: what reading it may take
MAX_EXPIRY_DAYS = 36_525
MAX_RELATED_CHARS = 4_096  # of a problem, to find related ones by
MAX_RELATED_ROWS = 20_000  # that are ranked: some 10 ms
MAX_RELATED_CANDIDATES = 64  # whose records are read
MAX_TRANSFERRED_SOLUTIONS = 64  # before one attempt
MAX_FOLLOW_UPS = 64  # one behind the other
LIBRARY_BUSY_SECONDS = 30.0  # how long a writer waits for another process's transaction
LIBRARY_CACHE_BYTES = 64 * 1024 * 1024  # holds the look-up tree of about 500,000 deposits

# --- collections (docs/REACH.md) -----------------------------------------------------------------
MAX_COLLECTION_NAME_CHARS = 200
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024  # a file is read whole; its text takes several times as much
MAX_PDF_PAGES = 100_000
MAX_HEADING_CHARS = 160  # and of a title; a heading path holds up to three
MAX_PARSED_SOURCE_CHARS = 1024 * 1024  # the parser takes 100x in memory; longer: by blank lines
MIN_PAGE_TOKENS = 64  # with the preamble; less holds no passage
MAX_QUESTION_PAGES = 16  # that one question is put to
MAX_ROUTED_QUESTION_CHARS = 4_096  # of a question, to find pages by
MAX_QUESTION_TERMS = 32
MAX_TERM_CHARS = 64
MAX_RANKED_ROWS = 10_000  # that share a term with a question: some 10 ms
MAX_ROUTED_PASSAGES = 48  # of each way to search, that pages are scored by
MAX_EMBEDDED_TOKENS = 256  # of one text; what is behind them is not read
EMBED_BATCH_TOKENS = 4_096  # with padding; some 60 MB of activations
MAX_PASSAGE_VECTORS = 64
VECTOR_SCAN_ROWS = 256  # passages whose vectors are in memory at once: some 6 MB

# --- methods (docs/METHODS.md) -----------------------------------------------------------------
MAX_METHOD_TEXT_CHARS = 4_096  # of a problem that is asked
MAX_METHOD_DIGITS = 400  # of one number in it
MAX_METHOD_SLOTS = 8
MAX_METHOD_WORD_SLOTS = 4
MAX_METHOD_SOURCE_CHARS = 16_384  # of a model's text that holds a program
MAX_PROGRAM_NODES = 2_000  # of its syntax tree
MAX_METHOD_BINDINGS = 720  # ways to fill a program's parameters from another phrasing
MAX_METHOD_INSTANCES = 1_000  # of one phrasing, that a method is learned from
METHOD_SHOWN = 6  # solved problems that a model sees
METHOD_HELD_BACK = 6  # that it does not see, and its programs have to answer: at least
METHOD_ADOPTED = 5  # solved problems of another phrasing, for a method to take it up: at least
METHOD_ANSWERS = 3  # different ones among them: at least
MAX_METHOD_ROW_CHARS = 1024 * 1024
METHOD_SECONDS = 5.0  # of one program for one problem, its sandbox's start included
METHOD_TRIAL_SECONDS = 10.0  # of one program for all problems that it is tried on

# --- the meter ---------------------------------------------------------------------------------
MAX_ZONE_WATTS = 1_000.0  # of one CPU package or its memory; says how soon a counter can wrap
MIN_POLL_SECONDS = 0.05  # a counter that wraps sooner is flagged, not chased
MAX_IDLE_SECONDS = 3_600.0
MAX_STATED_WATTS = 1_000_000.0

# --- studies -----------------------------------------------------------------------------------
MAX_PROTOCOL_BYTES = 1024 * 1024
