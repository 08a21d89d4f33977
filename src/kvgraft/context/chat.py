"""A conversation that reuses its own history, turn by turn, and after a restart.

What a model decoded token by token has other bits than the same tokens prefilled. So a finished
turn is *settled*, off the request path: the history that the next request will carry, rendered and
tokenised anew, is computed on the plan and stored. The plan is cut at the end of every finished
turn, so the next request computes its own words alone. A live chat and a restarted one make the
same calls over the same tokens, and agree bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from kvgraft.breakeven import Load
from kvgraft.decode import Decoded, greedy
from kvgraft.engines.base import Engine, Message
from kvgraft.prompt import encode, history_ids, render_messages, shared_prefix, turn_ends
from kvgraft.reuse import Keep, ReuseReport, compute_prompt
from kvgraft.store.chunks import ChunkStore


@dataclass(frozen=True)
class Reply:
    """The assistant's turn. `reasons` says why earlier turns were not reused, if they were not."""

    text: str
    decoded: Decoded
    reuse: ReuseReport
    reasons: tuple[str, ...] = ()


class Chat:
    """One conversation. Not for several threads at once; close it, or use it in a `with`."""

    def __init__(
        self,
        engine: Engine,
        chunks: ChunkStore,
        salt: bytes,
        *,
        system: str | None = None,
        history: Sequence[Message] = (),
        load: Load = Load.ALWAYS,
    ) -> None:
        """`history` resumes a conversation: the turns so far, without the system text. `load`:
        when stored states are loaded."""
        self._engine = engine
        self._chunks = chunks
        self._salt = salt
        self._load = load
        first = [] if system is None else [Message("system", system)]
        self.messages: list[Message] = [*first, *history]
        self._lock = threading.Lock()  # the engine runs one call at a time
        self._worker: ThreadPoolExecutor | None = None
        self._pending: Future[ReuseReport | None] | None = None
        self._settled: tuple[int, ...] = ()

    def send(self, text: str, *, max_new_tokens: int = 256) -> Reply:
        """Say something, get the greedy reply; settling begins in the background afterwards.

        Raises:
            InputError, ContextTooLong: the conversation does not fit the model any more.
        """
        messages = [*self.messages, Message("user", text)]
        tokenizer = self._engine.tokenizer
        ids = encode(tokenizer, render_messages(tokenizer, messages))
        self.settled()
        reasons = []
        if (kept := shared_prefix(self._settled, ids)) < len(self._settled):
            reasons.append(f"rewritten: the template renders history anew after token {kept}")
        with self._lock:
            computed = compute_prompt(
                self._engine,
                self._chunks,
                ids,
                salt=self._salt,
                keep=Keep.BLOCKS,
                cuts=turn_ends(ids, tokenizer.stop_ids, messages),
                load=self._load,
                room=max_new_tokens,
            )
            try:
                decoded = greedy(computed.context, max_new_tokens, tokenizer.stop_ids)
            finally:
                computed.context.close()
        reply = tokenizer.decode(decoded.ids)
        self.messages = [*messages, Message("assistant", reply)]
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="kvgraft-settle")
        self._pending = self._worker.submit(self._settle, tuple(self.messages))
        return Reply(reply, decoded, computed.report, (*reasons, *computed.report.misses))

    def settled(self) -> ReuseReport | None:
        """Wait for the last turn to be settled; what that took, or None if there was nothing.

        Raises:
            KvgraftError: settling failed. The conversation itself is unharmed.
        """
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else None

    def _settle(self, messages: tuple[Message, ...]) -> ReuseReport | None:
        tokenizer, block = self._engine.tokenizer, self._engine.form.block
        ids = history_ids(tokenizer, messages)
        cuts = turn_ends(ids, tokenizer.stop_ids, messages)
        # A template that does not end its turns leaves whole blocks to settle.
        end = cuts[-1] if cuts else len(ids) // block * block
        if not 0 < end <= self._engine.context_tokens:
            return None
        with self._lock:
            computed = compute_prompt(
                self._engine, self._chunks, ids[:end], salt=self._salt, cuts=cuts, load=self._load
            )
            computed.context.close()
        self._settled = ids[:end]
        return computed.report

    def close(self) -> None:
        """Finish settling and stop the background thread. Idempotent."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None

    def __enter__(self) -> Chat:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
