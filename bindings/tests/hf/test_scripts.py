"""The example scripts and benches that need PyTorch run as they stand, in short."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "examples" / "python"
BENCH = REPOSITORY / "bench"
CPU = ("--device", "cpu")


def test_ten_questions_are_answered(needle_14m, run_script):
    assert "10 of 10 right" in run_script(EXAMPLES / "ten_questions.py", *CPU, "--tokens", "4096")


def test_dense_and_retrieved_generation_are_compared(needle_14m, run_script):
    out = run_script(EXAMPLES / "compare_dense_retrieved.py", *CPU, "--tokens", "2048")
    value = out.split("the answer is ")[1].split()[0]
    assert out.count(value) == 3  # and in both answers
    assert "of the largest" in out


def test_bench_measures_caches_side_by_side(needle_14m, tmp_path, run_script):
    found = tmp_path / "decode.json"
    what = ("--contexts", "256,0.5Ki", "--caches", "topkv,dynamic", "--tokens", "2", "--window", "64")
    run_script(BENCH / "transformers_decode.py", *CPU, *what, "--json", found)
    results = json.loads(found.read_text())["results"]
    kinds = [(r["cache"], r["context"]) for r in results]
    # Each cache has lengths of its own: two tokens and the warm-up of four apart.
    assert kinds == [(c, n) for m in (256, 512) for c, n in (("topkv", m), ("dynamic", m - 6))]
    assert all(r["ms_per_token"] > 0 for r in results)


def test_bench_finds_needles(needle_14m, tmp_path, run_script):
    found = tmp_path / "needles.json"
    what = ("--needles", "--contexts", "1Ki", "--k", "64", "--window", "128", "--json", found)
    run_script(BENCH / "transformers_decode.py", *CPU, *what)
    (result,) = json.loads(found.read_text())["results"]
    assert result["found"] == result["of"] == 10


def test_bench_gives_each_cache_a_process_and_says_what_the_weights_are(needle_14m, tmp_path, run_script):
    found = tmp_path / "decode.json"
    what = ("--contexts", "512", "--caches", "topkv,dynamic", "--tokens", "2", "--random-rows")
    script = BENCH / "transformers_decode.py"
    run_script(script, *CPU, *what, "--weights", "int4", "--own-process", "--json", found)
    results = json.loads(found.read_text())["results"]
    assert [(r["cache"], r["context"]) for r in results] == [("topkv", 512), ("dynamic", 512)]
    assert all(r["tokens_per_second"] > 0 and r["host_peak"] > 0 for r in results)
    (weights,) = {r["weights"] for r in results}
    assert weights.startswith(("int4", "nf4", "bf16 (for int4: pip install torchao)"))


def test_bench_measures_how_often_a_guarantee_holds(needle_14m, run_script):
    text = REPOSITORY / "docs" / "reference" / "models.md"
    what = ("-m", needle_14m, "-c", "1200", "--queries", "2", "--window", "128")
    out = run_script(BENCH / "guarantee.py", *what, "--guarantee", "0.1,0.05", text)
    heading, guaranteed, equal_rows, fixed = out.splitlines()
    assert "1198 tokens, 8 layers, 96 pairs" in heading
    within = [float(line.split("within 0.1: ")[1].split()[0]) for line in (guaranteed, equal_rows)]
    assert within[0] >= 95
    rows = [int(line.split(" rows")[0].split()[-1]) for line in (guaranteed, equal_rows, fixed)]
    assert abs(rows[0] - rows[1]) <= 1 and rows[2] == 64 < rows[0]
