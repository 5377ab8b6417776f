"""Pictures of what was measured: needles found, attention mass kept, time per token.

Each function takes plain Python data, or the path of a file that `topkv` or a script wrote. It draws
with matplotlib and returns a Figure or Axes. Nothing is shown or saved, and no setting of matplotlib
is changed. Every kind of colour vision can distinguish the colours, and a colour never stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topkv import InvalidArgument
from topkv._results import is_path, member, number, rows_of, share

try:
    import matplotlib.pyplot as plt
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Patch, Rectangle
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
except ImportError as error:
    raise ImportError("topkv.plot draws with matplotlib: pip install matplotlib") from error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["decode_time", "mass_kept", "needle_heatmap", "tokens_label"]

_FOUND, _MISSED = "#2f7ebc", "#f0883e"
# Okabe & Ito 2008, "Color Universal Design", without the yellow that white paper swallows.
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vPX"
_FAINT = "#c8ced4"
# Options of a setting that are named beside its index, by their names in rows.
_RULES = {"kv_tail": "tail", "kv_mass": "mass", "kv_error": "error", "kv_guarantee": "guarantee"}


def tokens_label(tokens: float) -> str:
    """32768 -> "32Ki", 1536 -> "1.5Ki", 1000 -> "1000"."""
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if tokens >= size and (tokens / size * 4).is_integer():
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"


def needle_heatmap(cells: Any, *, title: str | None = None) -> Figure:
    """Draws found and missed needles by context length (across) and depth (down).

    Each index has a panel, beside the others.

    cells: the output directory of `topkv needle`, or its cells.jsonl; a CSV file; or rows. A row is
    (context tokens, depth in percent, found), or a mapping with "length" (or "context_tokens"),
    "depth" and "found". Rows of several indices also have "index". found is True, False or a share.
    A cell with several rows shows the share that was found.
    """
    panels = _needle_panels(rows_of(cells))
    lengths = sorted({length for panel in panels.values() for length, _ in panel})
    depths = sorted({depth for panel in panels.values() for _, depth in panel})
    panel_width = max(0.62 * len(lengths), 2.4)
    # As many beside each other as a page takes, in rows of equal length.
    beside = max(1, min(len(panels), int(16 / panel_width)))
    rows = -(-len(panels) // beside)
    columns = -(-len(panels) // rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.6 + panel_width * columns, 1 + (0.6 + 0.36 * len(depths)) * rows),
        sharex=True, sharey=True, squeeze=False, layout="constrained",
    )
    for ax, (index, panel) in zip(axes.flat, panels.items()):
        _draw_cells(ax, panel, lengths, depths)
        ax.tick_params(labelbottom=True)
        if len(panels) > 1:
            ax.set_title(f"{index}\n{_found_text(panel)} found", fontsize="medium")
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax in axes.flat[len(panels) - columns : len(panels)]:  # the last of each column
        ax.set_xlabel("context length (tokens)")
    for ax in axes[:, 0]:
        ax.set_ylabel("depth of the needle (%)")
    figure.suptitle(title if title is not None else _found_title(panels), fontsize="large")
    entries = [Patch(color=_FOUND, label="✓ found"), Patch(color=_MISSED, label="✗ missed")]
    if any(len(panel) < len(lengths) * len(depths) for panel in panels.values()):
        entries.append(Patch(facecolor="none", edgecolor=_FAINT, hatch="///", label="not run"))
    figure.legend(handles=entries, loc="outside lower center", ncols=3, frameon=False)
    return figure


def mass_kept(
    shares: Any, ks: Sequence[int] | None = None, *, kinds: Mapping[Any, str] | None = None,
    ax: Axes | None = None, title: str | None = None,
) -> Axes:
    """Draws the share of a layer's attention that its best k rows hold, against k.

    Each layer has a line for its mean, over a light band from the lower to the upper quartile.

    shares: one of

    - {layer: array [ks, ...]} or an array [layers, ks, ...], with ks, as topkv.mass.attention_mass
      returns them. The mean is taken over all axes after the axis of ks;
    - rows with "layer", "k" and "share", or a file of such rows;
    - the lines that `topkv bench decode --json` prints.

    kinds: the kind of each layer, for the legend: {0: "diffuse", 1: "broad"}. Rows may have it as
    "kind", as the rows of `topkv bench` do.
    """
    rows = None if ks is not None or isinstance(shares, (Mapping, np.ndarray)) else rows_of(shares)
    kinds = {**_kinds(rows or ()), **(kinds or {})}
    layers, counts = _mass_arrays(shares if rows is None else rows, ks)
    unknown = [layer for layer in kinds if layer not in layers]
    if unknown:
        raise InvalidArgument(f"kinds names layer {unknown[0]}; expected layers among {list(layers)}")
    ax = ax if ax is not None else plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    colours = colormaps["viridis"](np.linspace(0, 0.92, len(layers)))
    alpha = min(0.15, 0.6 / len(layers))  # many bands must not hide the lines
    for (layer, values), colour in zip(layers.items(), colours):
        samples = 100 * values.reshape(len(counts), -1)
        ax.plot(counts, samples.mean(axis=1), color=colour, marker="o", markersize=3,
                label=f"{layer} ({kinds[layer]})" if kinds.get(layer) else f"{layer}")
        if samples.shape[1] > 1:
            low, high = np.percentile(samples, (25, 75), axis=1)
            ax.fill_between(counts, low, high, color=colour, alpha=alpha, linewidth=0)
    _tokens_axis(ax, counts)
    ax.set_xlabel("k (rows kept)")
    ax.set_ylabel("attention mass kept (%)")
    ax.set_ylim(0, 101)
    ax.set_title(title if title is not None else "Attention mass of the best k rows")
    _grid(ax)
    columns = 1 + (len(layers) - 1) // 16
    ax.legend(title="layer", loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=columns,
              frameon=False, fontsize="small")
    return ax


def decode_time(times: Any, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Time per token against context length, a line for each cache.

    times: one of

    - {name: (context lengths in tokens, seconds per token)};
    - rows with "cache", "context_tokens" and "seconds", or a file of such rows;
    - the JSON of bench/transformers_decode.py; results without a time are left out;
    - the lines that `topkv bench decode --json` prints, joined for several contexts. A line is named
      by its index, top k and other options. For sessions stepped together it has the time of their
      step.
    """
    lines = _time_lines(times)
    ax = ax if ax is not None else plt.subplots(figsize=(6.4, 4.2), layout="constrained")[1]
    for number_of_line, (name, points) in enumerate(lines.items()):
        lengths, seconds = np.array(sorted(points), dtype=float).T
        ax.plot(
            lengths, 1000 * seconds, label=name,
            color=_LINES[number_of_line % len(_LINES)],
            marker=_MARKERS[number_of_line % len(_MARKERS)],
            linestyle="-" if number_of_line < len(_LINES) else "--",
        )
    every = [second for points in lines.values() for _, second in points]
    _tokens_axis(ax, [length for points in lines.values() for length, _ in points])
    if max(every) > 8 * min(every):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.set_ylim(bottom=0)
    ax.set_xlabel("context length (tokens)")
    ax.set_ylabel("time per token (ms)")
    ax.set_title(title if title is not None else "Time per token")
    _grid(ax)
    ax.legend(frameon=False)
    return ax


def _needle_panels(rows: Iterable[Any]) -> dict[str, dict[tuple[float, float], tuple[float, int]]]:
    """{index: {(length, depth): (sum of found, rows)}}, in the order of the rows."""
    panels: dict[str, dict[tuple[float, float], tuple[float, int]]] = {}
    for row in rows:
        if isinstance(row, Mapping):
            index = str(row.get("index", ""))
            length, depth = member(row, "length", "context_tokens"), member(row, "depth")
            found = member(row, "found")
        else:
            try:
                length, depth, found = row
            except (TypeError, ValueError):
                raise InvalidArgument(
                    f"expected (context tokens, depth, found) or a mapping, found {row!r}"
                ) from None
            index = ""
        cell = (number(length), number(depth))
        panel = panels.setdefault(index, {})
        before, asked = panel.get(cell, (0.0, 0))
        panel[cell] = (before + share(found), asked + 1)
    if not panels:
        raise InvalidArgument("there is no cell to draw")
    return panels


def _draw_cells(ax: Axes, panel: Mapping, lengths: list[float], depths: list[float]) -> None:
    colours = LinearSegmentedColormap.from_list("found", (_MISSED, "#e9e3dc", _FOUND))
    for column, length in enumerate(lengths):
        for row, depth in enumerate(depths):
            corner = (column - 0.47, row - 0.44)
            if (length, depth) not in panel:
                ax.add_patch(Rectangle(corner, 0.94, 0.88, facecolor="none", edgecolor=_FAINT,
                                       hatch="///", linewidth=0.5))
                continue
            found, asked = panel[length, depth]
            part = found / asked
            ax.add_patch(Rectangle(corner, 0.94, 0.88, facecolor=colours(part), linewidth=0))
            text = "✓" if part == 1 else "✗" if part == 0 else f"{100 * part:.0f}%"
            ax.text(column, row, text, ha="center", va="center", fontsize="small",
                    color="white" if part in (0, 1) else "#1f2328")
    ax.set_xlim(-0.5, len(lengths) - 0.5)
    ax.set_ylim(len(depths) - 0.5, -0.5)
    crowded = len(lengths) > 8
    ax.set_xticks(range(len(lengths)), [tokens_label(length) for length in lengths],
                  rotation=90 if crowded else 0)
    ax.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _found_title(panels: Mapping[str, Mapping]) -> str:
    if len(panels) > 1:
        return "Needles found"
    (panel,) = panels.values()
    return f"Needles found: {_found_text(panel)}"


def _found_text(panel: Mapping) -> str:
    found, asked = (sum(column) for column in zip(*panel.values()))
    return f"{found:g} of {asked}"


def _kinds(rows: Iterable[Any]) -> dict[int, str]:
    """The kind that rows give each layer."""
    kinds = {}
    for row in rows:
        for entry in row.get("attention_mass", (row,)):
            if isinstance(entry, Mapping) and "kind" in entry:
                kinds[int(number(member(entry, "layer")))] = str(entry["kind"])
    return kinds


def _mass_arrays(shares: Any, ks: Sequence[int] | None) -> tuple[dict[Any, np.ndarray], list[int]]:
    if ks is not None:
        named = shares if isinstance(shares, Mapping) else dict(enumerate(np.asarray(shares)))
        layers = {layer: np.asarray(values, dtype=float) for layer, values in named.items()}
        counts = [int(k) for k in ks]
    else:
        if isinstance(shares, (Mapping, np.ndarray)):
            raise InvalidArgument("shares is given by layer without ks; give ks, the k of each row of an array")
        table: dict[Any, dict[int, list[float]]] = {}
        rows = rows_of(shares)
        contexts = sorted({int(number(row.get("context_tokens", 0))) for row in rows})
        if len(contexts) > 1:
            raise InvalidArgument(f"expected shares of one context, found lengths {contexts}")
        for row in rows:
            for entry in row.get("attention_mass", (row,)):
                layer = int(number(member(entry, "layer")))
                at = table.setdefault(layer, {}).setdefault(int(number(member(entry, "k"))), [])
                at.append(number(member(entry, "share")))
        counts = sorted({k for layer in table.values() for k in layer})
        for layer, by_k in table.items():
            if len({len(by_k.get(k, ())) for k in counts}) != 1:
                raise InvalidArgument(f"layer {layer} has different numbers of shares for its ks; give every k the same number")
        layers = {layer: np.array([by_k[k] for k in counts]) for layer, by_k in table.items()}
    if not layers or not counts:
        raise InvalidArgument("there is no layer to draw")
    for layer, values in layers.items():
        if values.ndim < 1 or values.shape[0] != len(counts) or values.size == 0:
            raise InvalidArgument(
                f"layer {layer}: expected an array [{len(counts)}, ...], a row for each k, "
                f"found shape {list(values.shape)}"
            )
    return layers, counts


def _time_lines(times: Any) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    if isinstance(times, Mapping) and not is_path(times):
        for name, (lengths, seconds) in times.items():
            lines[str(name)] = [(float(a), float(b)) for a, b in zip(lengths, seconds, strict=True)]
    else:
        for row in rows_of(times):
            if "kv_topk" in row:
                name = f"{member(row, 'index')}, top {row['kv_topk']}"
                for key, label in _RULES.items():
                    if row.get(key) not in (None, ""):
                        name += f", {label} {row[key]}"
                if number(row.get("sessions") or 1) > 1:
                    name += f", {row['sessions']} sessions in a step"
            else:
                name = str(member(row, "cache"))
            if "error" in row:  # what did not fit has no time
                continue
            if "ms_per_token" in row:
                second = number(row["ms_per_token"]) / 1000
            else:
                second = number(member(row, "seconds", "median_seconds"))
            length = number(member(row, "context_tokens", "context"))
            lines.setdefault(name, []).append((length, second))
    points = [point for line in lines.values() for point in line]
    if not points or not all(lines.values()):
        raise InvalidArgument("there is no time to draw")
    if any(length <= 0 or not second > 0 for length, second in points):
        raise InvalidArgument("context lengths and times must be positive")
    return lines


def _tokens_axis(ax: Axes, counts: Sequence[float]) -> None:
    """Labels powers of two; the ends are a little outside the data."""
    low, high = min(counts), max(counts)
    ax.set_xscale("log", base=2)
    ax.set_xlim(low / 1.15, high * 1.15)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tokens_label(value)))


def _grid(ax: Axes) -> None:
    ax.grid(True, color="#e4e7ea", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
