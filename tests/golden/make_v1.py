"""How the golden files of format version 1 were made:
`python tests/golden/make_v1.py FOLDER [NAME ...]`.

They were made once. A later run gives other tensor bits where numpy or the machine differs, so
this never overwrites anything: files that were released stay as they are.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from kvgraft.engines.toy import RECURRENT, ToyEngine, ToyShape
from kvgraft.plan import PUBLIC_SALT
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

# Full and sliding layers, two full blocks, a padded tail, an end point, a tenant's salt; the
# smallest that there is: one full layer, two blocks without a tail, public; and recurrent layers
# around a full one, with a bare tail and two end points.
CASES = {
    "mixed": (ToyShape(), 37, bytes(range(32))),
    "plain": (ToyShape(windows=(0,), block=4, rungs=(1, 2, 4)), 8, PUBLIC_SALT),
    "recurrent": (
        ToyShape(windows=(RECURRENT, 0, RECURRENT), block=4, rungs=()),
        11,
        PUBLIC_SALT,
    ),
}


def make(folder: Path, name: str) -> None:
    shape, tokens, salt = CASES[name]
    ids = [(37 * position + 11) % 256 for position in range(tokens)]
    engine = ToyEngine(shape=shape)
    blobs = MemoryStore()
    store = ChunkStore(blobs, Index(None))
    compute_prompt(engine, store, ids, salt=salt, keep=Keep.ALL).context.close()
    entries = [entry.object for entry in store.index.all_entries()]
    (pack,) = (blob for blob in blobs.names() if blob.endswith(".pack"))
    size = blobs.open(pack).size_bytes
    data = bytearray(size)
    blobs.open(pack).read_into(0, [memoryview(data)])
    facts = {
        "shape": asdict(shape),
        "ids": ids,
        "salt": salt.hex(),
        "fingerprint": engine.fingerprint.hex,
        "pack": pack,
        "pack_bytes": size,
        "objects": [
            {
                "role": entry.role.name,
                "key": entry.key.hex(),
                "raw_digest": entry.raw_digest.hex(),
                "offset": entry.offset,
                "stored_length": entry.stored_length,
                "start": entry.start,
                "count": entry.count,
                "rows": entry.rows,
            }
            for entry in entries
        ],
    }
    for path, content in {
        f"{name}.pack": bytes(data),
        f"{name}.fingerprint.json": engine.fingerprint.to_json().encode(),
        f"{name}.json": json.dumps(facts, indent=1).encode() + b"\n",
    }.items():
        with (folder / path).open("xb") as file:  # x: never over a golden file
            file.write(content)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for case in sys.argv[2:] or CASES:
        make(target, case)
