"""Search keys: the index alone, without a model.

Makes 100,000 random keys, adds them to an index named by a spec string and prints the ten keys
with the largest inner product with a query.

    python examples/python/search_keys.py [spec]        e.g. hnsw:M=16,ef=128
"""

import sys

import numpy as np

import topkv

random = np.random.default_rng(1)
keys = random.standard_normal((100_000, 64), dtype=np.float32)
query = random.standard_normal((1, 64), dtype=np.float32)

index = topkv.KeyIndex(sys.argv[1] if len(sys.argv) > 1 else "exact")
index.add(keys)  # read where they lie: the index keeps the array alive
index.build()

result = index.search(query, 10)
print(f"{index.spec}: {index.size} keys, {index.memory} bytes beside them")
for position, score in zip(result.positions(0), result.scores(0)):
    print(f"  key {position:6d}  q·k = {score:.4f}")
