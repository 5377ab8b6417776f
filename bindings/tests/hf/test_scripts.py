"""The example scripts and benches that need PyTorch run as they stand, in short."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "examples" / "python"
BENCH = REPOSITORY / "bench"


def run(script, *arguments, device=("--device", "cpu")) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *device, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_ten_questions_are_answered(needle_14m):
    assert "10 of 10 right" in run(EXAMPLES / "ten_questions.py", "--tokens", "4096")


def test_dense_and_retrieved_generation_are_compared(needle_14m):
    out = run(EXAMPLES / "compare_dense_retrieved.py", "--tokens", "2048")
    value = out.split("the answer is ")[1].split()[0]
    assert out.count(value) == 3  # and in both answers
    assert "of the largest" in out


def test_bench_measures_caches_side_by_side(needle_14m, tmp_path):
    script = BENCH / "transformers_decode.py"
    for rows in ([], ["--random-rows"]):
        found = tmp_path / "decode.json"
        what = ("--contexts", "1Ki,1536", "--caches", "topkv,dynamic", "--tokens", "2")
        run(script, *what, "--json", str(found), *rows)
        results = json.loads(found.read_text())["results"]
        kinds = [(r["cache"], r["context"]) for r in results]
        # Each cache has lengths of its own: two tokens and the warm-up of four apart.
        assert kinds == [(c, n) for m in (1024, 1536) for c, n in (("topkv", m), ("dynamic", m - 6))]
        assert all(r["ms_per_token"] > 0 for r in results)


def test_bench_finds_needles(needle_14m, tmp_path):
    found = tmp_path / "needles.json"
    run(BENCH / "transformers_decode.py", "--needles", "--contexts", "2Ki", "--json", str(found))
    (result,) = json.loads(found.read_text())["results"]
    assert result["found"] == result["of"] == 10


def test_bench_gives_each_cache_a_process_and_says_what_the_weights_are(needle_14m, tmp_path):
    found = tmp_path / "decode.json"
    what = ("--contexts", "512", "--caches", "topkv,dynamic", "--tokens", "2", "--random-rows")
    script = BENCH / "transformers_decode.py"
    run(script, *what, "--weights", "int4", "--own-process", "--json", str(found))
    results = json.loads(found.read_text())["results"]
    assert [(r["cache"], r["context"]) for r in results] == [("topkv", 512), ("dynamic", 512)]
    assert all(r["tokens_per_second"] > 0 and r["host_peak"] > 0 for r in results)
    (weights,) = {r["weights"] for r in results}
    assert weights.startswith(("int4", "nf4", "bf16 (for int4: pip install torchao)"))


def test_bench_measures_how_often_a_guarantee_holds(needle_14m):
    text = str(REPOSITORY / "docs" / "reference" / "models.md")
    what = ("-m", str(needle_14m), "-c", "1200", "--queries", "2", "--window", "128")
    out = run(BENCH / "guarantee.py", *what, "--guarantee", "0.1,0.05", text, device=())
    heading, guaranteed, equal_rows, fixed = out.splitlines()
    assert "1198 tokens, 8 layers, 96 pairs" in heading
    within = [float(line.split("within 0.1: ")[1].split()[0]) for line in (guaranteed, equal_rows)]
    assert within[0] >= 95
    rows = [int(line.split(" rows")[0].split()[-1]) for line in (guaranteed, equal_rows, fixed)]
    assert abs(rows[0] - rows[1]) <= 1 and rows[2] == 64 < rows[0]
