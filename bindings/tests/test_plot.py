"""What topkv.plot draws from rows, arrays and files, read back from the figures."""

import json
import subprocess
import sys

import numpy as np
import pytest

import topkv

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

from topkv import plot  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def marks_of(ax):
    return {tuple(map(int, text.get_position())): text.get_text() for text in ax.texts}


def write_lines(path, rows, rest=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + rest)
    return path


def cell(length, depth, found, index="exact"):
    return {"length": length, "depth": depth, "found": found, "index": index, "answer": "x"}


def test_lengths_are_labelled_in_binary_units_when_they_are_round():
    labels = [plot.tokens_label(n) for n in (512, 1000, 1024, 1536, 32768, 2**20, 1100000)]
    assert labels == ["512", "1000", "1Ki", "1.5Ki", "32Ki", "1Mi", "1.1e+06"]


def test_heatmap_marks_found_and_missed_at_their_length_and_depth():
    figure = plot.needle_heatmap([(8192, 0, True), (4096, 0, False), (4096, 50, True)])
    (ax,) = figure.axes
    assert marks_of(ax) == {(0, 0): "✗", (1, 0): "✓", (0, 1): "✓"}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["4Ki", "8Ki"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "50"]
    assert figure.get_suptitle() == "Needles found: 2 of 3"
    assert len([patch for patch in ax.patches if isinstance(patch, Rectangle)]) == 4
    assert "not run" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_heatmap_of_several_trials_shows_the_share_found():
    figure = plot.needle_heatmap([(4096, 0, found) for found in (True, False, False, 1)])
    assert marks_of(figure.axes[0]) == {(0, 0): "50%"}


def test_heatmap_has_a_panel_for_each_index_and_all_lengths_in_each():
    rows = [cell(4096, 0, True), cell(8192, 0, True), cell(4096, 0, False, "hnsw:M=16")]
    first, second = plot.needle_heatmap(rows).axes
    titles = [ax.get_title().split("\n") for ax in (first, second)]
    assert [title[0] for title in titles] == ["exact", "hnsw:M=16"]
    assert all(title[1].endswith(" found") for title in titles)
    assert marks_of(first) == {(0, 0): "✓", (1, 0): "✓"}
    assert marks_of(second) == {(0, 0): "✗"}


def test_heatmap_reads_the_directory_of_a_needle_run_without_its_cut_off_line(tmp_path):
    write_lines(tmp_path / "cells.jsonl", [cell(4096, 0, True), cell(4096, 100, False)], '{"length')
    figure = plot.needle_heatmap(tmp_path)
    assert marks_of(figure.axes[0]) == {(0, 0): "✓", (0, 1): "✗"}


def test_heatmap_reads_csv(tmp_path):
    path = tmp_path / "found.csv"
    path.write_text("context_tokens,depth,found\n4096,0,True\n4096,50,no\n4096,100,0.25\n")
    figure = plot.needle_heatmap(str(path))
    assert marks_of(figure.axes[0]) == {(0, 0): "✓", (0, 1): "✗", (0, 2): "25%"}


def test_heatmap_says_what_a_row_lacks(tmp_path):
    summary = tmp_path / "summary.csv"
    summary.write_text("context_tokens,index,asked,found\n4096,exact,10,9\n")
    with pytest.raises(topkv.InvalidArgument, match="no 'depth'; it has 'context_tokens'"):
        plot.needle_heatmap(summary)
    with pytest.raises(topkv.InvalidArgument, match=r"expected \(context tokens, depth, found\)"):
        plot.needle_heatmap([(4096, 0)])
    with pytest.raises(topkv.InvalidArgument, match="found or missed, or a share of 0 to 1"):
        plot.needle_heatmap([(4096, 0, 9)])
    with pytest.raises(topkv.InvalidArgument, match="no cell"):
        plot.needle_heatmap([])


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(topkv.FileError, match="nowhere.jsonl: cannot be read"):
        plot.needle_heatmap(tmp_path / "nowhere.jsonl")
    empty = tmp_path / "empty.csv"
    empty.write_text("context_tokens,depth,found\n")
    with pytest.raises(topkv.FileError, match="empty.csv: has no results"):
        plot.needle_heatmap(empty)
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"length": 1\n{"length": 2}\n')
    with pytest.raises(topkv.FileError, match="torn.jsonl: is neither CSV, JSON nor JSON lines"):
        plot.needle_heatmap(torn)


def test_mass_lines_are_means_within_bands_of_quartiles():
    shares = np.random.default_rng(1).random((2, 3, 5, 4))
    ax = plot.mass_kept(shares, [1, 16, 256])
    assert [line.get_label() for line in ax.lines] == ["0", "1"]
    np.testing.assert_allclose(ax.lines[1].get_ydata(), 100 * shares[1].mean(axis=(1, 2)))
    band = ax.collections[1].get_paths()[0].vertices
    low, high = np.percentile(100 * shares[1, 2], (25, 75))
    at_last = band[band[:, 0] == 256][:, 1]
    assert (at_last.min(), at_last.max()) == (pytest.approx(low), pytest.approx(high))
    assert ax.get_xscale() == "log" and ax.xaxis.get_transform().base == 2


def test_mass_of_the_bench_and_of_rows_is_the_same_picture(tmp_path):
    rows = [{"layer": layer, "k": k, "share": s} for layer, k, s in
            ((0, 64, 0.25), (3, 64, 0.5), (0, 1024, 0.75), (3, 1024, 1.0))]
    bench = write_lines(tmp_path / "bench.json", [{"bench": "decode", "attention_mass": rows}])
    for source in (rows, bench):
        ax = plot.mass_kept(source)
        assert [line.get_label() for line in ax.lines] == ["0", "3"]
        np.testing.assert_allclose(ax.lines[0].get_data(), ([64, 1024], [25, 75]))


def test_mass_names_the_kind_of_each_layer_that_is_known(tmp_path):
    rows = [{"kind": kind, "layer": layer, "k": k, "share": 0.5}
            for kind, layer in (("diffuse", 0), ("broad", 1)) for k in (64, 1024)]
    bench = write_lines(tmp_path / "bench.json", [{"bench": "decode", "attention_mass": rows}])
    for source in (rows, bench):
        ax = plot.mass_kept(source)
        assert [line.get_label() for line in ax.lines] == ["0 (diffuse)", "1 (broad)"]
    ax = plot.mass_kept({0: np.ones(2), 5: np.ones(2)}, [1, 2], kinds={5: "full attention"})
    assert [line.get_label() for line in ax.lines] == ["0", "5 (full attention)"]
    with pytest.raises(topkv.InvalidArgument, match=r"names layer 1; expected layers among \[0\]"):
        plot.mass_kept(np.ones((1, 2)), [1, 2], kinds={1: "broad"})


def test_mass_refuses_arrays_that_do_not_fit_ks():
    with pytest.raises(topkv.InvalidArgument, match=r"layer 0: expected an array \[3, ...\]"):
        plot.mass_kept(np.ones((2, 4)), [1, 2, 3])
    with pytest.raises(topkv.InvalidArgument, match="without ks"):
        plot.mass_kept({0: np.ones(3)})
    with pytest.raises(topkv.InvalidArgument, match="different numbers of shares"):
        plot.mass_kept([{"layer": 0, "k": 1, "share": 0.5}, {"layer": 1, "k": 2, "share": 0.5}])


def test_mass_of_several_contexts_is_not_mixed_into_one_line():
    rows = [{"layer": 0, "k": 64, "share": 0.5, "context_tokens": n} for n in (4096, 1024)]
    with pytest.raises(topkv.InvalidArgument, match=r"one context, found lengths \[1024, 4096\]"):
        plot.mass_kept(rows)


def test_times_become_a_line_for_each_cache_in_milliseconds():
    ax = plot.decode_time({"dense": ([65536, 32768], [0.02, 0.01]), "topkv": ([32768], [0.5])})
    dense, other = ax.lines
    np.testing.assert_allclose(dense.get_data(), ([32768, 65536], [10, 20]))
    assert (dense.get_label(), other.get_label()) == ("dense", "topkv")
    assert dense.get_color() != other.get_color() and dense.get_marker() != other.get_marker()
    assert ax.get_yscale() == "log"
    assert ax.xaxis.get_major_formatter()(65536) == "64Ki"


def test_times_of_one_size_start_at_zero():
    ax = plot.decode_time({"a": ([1024, 2048], [0.02, 0.03])})
    assert ax.get_yscale() == "linear" and ax.get_ylim()[0] == 0


def test_times_are_read_from_the_bench_and_from_rows(tmp_path):
    bench = [{"index": "exact", "kv_topk": k, "context_tokens": n, "median_seconds": n / 1e6}
             for n in (1024, 4096) for k in ("64", "uniform:512")]
    ax = plot.decode_time(write_lines(tmp_path / "bench.json", bench))
    assert [line.get_label() for line in ax.lines] == ["exact, top 64", "exact, top uniform:512"]
    np.testing.assert_allclose(ax.lines[0].get_data(), ([1024, 4096], [1.024, 4.096]))
    one = {"index": "codes", "kv_topk": "64", "context_tokens": 1024, "median_seconds": 0.004, "sessions": 1}
    several = [one, one | {"sessions": 4, "median_seconds": 0.01}, one | {"kv_mass": 0.9, "kv_tail": "mean"}]
    ax = plot.decode_time(write_lines(tmp_path / "sessions.json", several))
    assert [line.get_label() for line in ax.lines] == [
        "codes, top 64",
        "codes, top 64, 4 sessions in a step",
        "codes, top 64, tail mean, mass 0.9",
    ]
    ax = plot.decode_time([{"cache": "dense", "context_tokens": "1024", "seconds": "0.5"}])
    np.testing.assert_allclose(ax.lines[0].get_data(), ([1024], [500]))


def test_times_of_the_transformers_bench_leave_out_what_did_not_fit(tmp_path):
    path = tmp_path / "decode.json"
    results = [
        {"cache": "topkv", "context": 32768, "ms_per_token": 4.5},
        {"cache": "dynamic", "context": 32768, "ms_per_token": 9},
        {"cache": "dynamic", "context": 524288, "error": "out of memory"},
    ]
    path.write_text(json.dumps({"arguments": {"k": "256"}, "results": results}))
    ax = plot.decode_time(path)
    assert [line.get_label() for line in ax.lines] == ["topkv", "dynamic"]
    np.testing.assert_allclose(ax.lines[1].get_data(), ([32768], [9]))


def test_times_that_cannot_be_drawn_are_refused():
    for lines in ({}, {"a": ([], [])}):
        with pytest.raises(topkv.InvalidArgument, match="no time to draw"):
            plot.decode_time(lines)
    with pytest.raises(topkv.InvalidArgument, match="must be positive"):
        plot.decode_time({"a": ([1024], [0.0])})


def test_ten_indices_have_panels_in_two_rows():
    rows = [
        {"length": length, "depth": 0, "found": number < 7, "index": f"index {number}"}
        for number in range(10) for length in (1024, 2048)
    ]
    figure = plot.needle_heatmap(rows)
    assert [ax.get_title() for ax in figure.axes][5:8] == [
        "index 5\n2 of 2 found", "index 6\n2 of 2 found", "index 7\n0 of 2 found"]
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (2, 5)
    eleventh = [*rows, {"length": 1024, "depth": 0, "found": True, "index": "index 10"}]
    shown = [ax for ax in plot.needle_heatmap(eleventh).axes if ax.get_visible()]
    assert len(shown) == 11
    assert [bool(ax.get_xlabel()) for ax in shown] == [False] * 5 + [True] * 6


def test_drawing_into_an_own_axes_returns_it():
    _, (left, right) = plt.subplots(1, 2)
    assert plot.decode_time({"a": ([1024], [0.1])}, ax=left, title="mine") is left
    assert left.get_title() == "mine"
    assert plot.mass_kept(np.ones((1, 2)), [1, 2], ax=right) is right


def test_no_setting_of_matplotlib_is_changed():
    before = dict(matplotlib.rcParams)
    figure = plot.needle_heatmap([(4096, 0, True)])
    figure.canvas.draw()
    plot.mass_kept(np.ones((1, 2, 3)), [1, 2])
    plot.decode_time({"a": ([1024], [0.1])})
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_error_names_the_command():
    program = "import sys; sys.modules['matplotlib'] = None; import topkv; import topkv.plot"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert "topkv.plot draws with matplotlib: pip install matplotlib" in done.stderr
