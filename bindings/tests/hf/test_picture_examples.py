"""The example scripts that draw, run on short texts."""

import csv

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture
def run(repository, tmp_path, run_script):
    """run(name, *arguments): what the script prints, and the rows of its table."""

    def run(name, *arguments):
        printed = run_script(
            repository / "examples" / "python" / name, "-o", tmp_path, "--device", "cpu", *arguments
        )
        stem = name.removesuffix(".py")
        assert (tmp_path / f"{stem}.png").stat().st_size > 1000
        with open(tmp_path / f"{stem}.csv", newline="", encoding="utf-8") as file:
            return printed, list(csv.DictReader(file))

    return run


def test_heatmap_finds_the_needles_of_short_texts(run):
    printed, rows = run(
        "heatmap.py", "--lengths", "1Ki,2048", "--depths", "10,60", "--k", "32", "--window", "64",
    )
    cells = [(row["context_tokens"], row["depth"]) for row in rows]
    assert cells == [("1024", "10.0"), ("1024", "60.0"), ("2048", "10.0"), ("2048", "60.0")]
    assert all((row["expected"] in row["answer"]) == (row["found"] == "True") for row in rows)
    assert [row["found"] for row in rows].count("True") >= 3
    assert f"found {[row['found'] for row in rows].count('True')} of 4" in printed


def test_attention_mass_grows_with_k_to_all_of_it_in_every_layer(run):
    _, rows = run("attention_mass.py", "--tokens", "600", "--k", "1,32,600")
    by_k = {k: [float(row["share"]) for row in rows if row["k"] == k] for k in ("1", "32", "600")}
    assert {row["layer"] for row in rows} == set("01234567")
    assert len(by_k["1"]) == len(by_k["32"]) == len(by_k["600"]) > 8 * 6
    assert 0 < np.mean(by_k["1"]) < np.mean(by_k["32"]) < 1
    np.testing.assert_allclose(by_k["600"], 1.0)
