"""Writes an indexer of random numbers for needle-14m, with the standard library alone.

    python3 make_indexer.py FILE LAYERS [KEY=VALUE ...]     (metadata)
"""

import json
import random
import struct
import sys

HIDDEN, HEADS, DIM = 384, 4, 16

file, layers = sys.argv[1], int(sys.argv[2])
metadata = {"topkv_indexer": "1", "score": "relu", "heads": str(HEADS), "dim": str(DIM), "choices": "2",
            "rope_dim": "8", "rope_theta": "10000.0", "top": "64", "local": "16", "key_dtype": "bf16"}
metadata |= dict(one.split("=", 1) for one in sys.argv[3:])
draw = random.Random(5)
header, data = {"__metadata__": metadata}, b""
for layer in range(layers):
    for name, shape in (("wq.weight", [HEADS * DIM, HIDDEN]), ("wk.weight", [DIM, HIDDEN])):
        count = shape[0] * shape[1]
        values = struct.pack(f"<{count}f", *(draw.gauss(0, 0.05) for _ in range(count)))
        header[f"layers.{layer}.{name}"] = {
            "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
text = json.dumps(header).encode()
with open(file, "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text + data)
