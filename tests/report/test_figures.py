"""Figures say what the record holds: every test states one such sentence and looks it up in the drawn specification."""

import dataclasses
import itertools
import json
import math
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.answers.attention import SATURATED, AttentionAnswer
from quadform.answers.numbers import number, percent, short_name
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.record import Estimate, Record
from quadform.report import DARK, LIGHT, blocks, export_figures, growth, heat_map, moments, spectrum
from quadform.report.page import drawn
from quadform.report.raster import DECADES, LEVELS, aggregate, decades, levels, png
from quadform.report.style import contrast, rgb
from quadform.report.texts import EN, KO


def changed(record: Record, **scalars: float) -> Record:
    """The record with other values for some of its numbers."""
    new = {**record.scalars, **{name: Estimate(value) for name, value in scalars.items()}}
    return dataclasses.replace(record, scalars=new)


def values(spec: dict) -> list[dict]:
    """Every inline row of data in a specification."""
    found: list[dict] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("data"), dict):
                found.extend(node["data"].get("values", []))
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(spec)
    for rows in spec.get("datasets", {}).values():
        found.extend(rows)
    return found


# --- numbers and colours --------------------------------------------------------------------------------------------
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), st.integers(1, 6))
def test_a_written_number_reads_back(value: float, digits: int) -> None:
    """Parsing what `number` wrote gives the value to the digits asked for."""
    text = number(value, digits).replace("−", "-").replace(",", "")
    if "10" in text and re.search("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]", text):
        mantissa, _, raised = text.rpartition("10")
        raised = raised.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
        text = f"{mantissa.rstrip('×') + ('1' if mantissa in ('', '-') else '')}e{raised}"
    assert float(text) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits), abs=0)


def test_a_share_is_never_rounded_to_none_or_all() -> None:
    """0 and 100 per cent are said only when they are true."""
    assert percent(0.0) == "0 %"
    assert percent(1.0) == "100 %"
    assert percent(1e-9) == "< 0.1 %"
    assert percent(1 - 1e-9) == "> 99.9 %"
    assert percent(0.4115) == "41 %"


@pytest.mark.parametrize("style", [LIGHT, DARK], ids=lambda s: s.name)
def test_labels_in_parameter_colours_can_be_read(style) -> None:
    """Text in the colour of query, key, value, out, MLP, ink or muted has a contrast of at least 4.5 on the paper."""
    for colour in (style.query, style.key, style.value, style.out, style.mlp, style.ink, style.muted):
        assert contrast(colour, style.paper) >= 4.5


@pytest.mark.parametrize("style", [LIGHT, DARK], ids=lambda s: s.name)
def test_equal_size_has_equal_lightness_in_both_signs(style) -> None:
    """The two ramps differ in hue, hardly in luminance, and each runs one way."""
    up, down = style.ramp(1, LEVELS), style.ramp(-1, LEVELS)
    for a, b in zip(up, down, strict=True):
        assert contrast(a, b) < 1.35
        assert sum(abs(p - q) for p, q in zip(rgb(a), rgb(b), strict=True)) > 15
    against = [contrast(c, style.paper) for c in up]
    assert all(b >= a * 0.999 for a, b in itertools.pairwise(against))


def test_query_key_value_have_one_colour_each(record) -> None:
    """The frames of the heat map and the lines of the growth figure use the same three colours."""
    for style in (LIGHT, DARK):
        want = {style.query, style.key, style.value}
        for draw in (heat_map, growth):
            seen = {row["colour"] for row in values(draw(record, EN, style).spec) if "colour" in row}
            assert want <= seen


# --- pictures of matrices -------------------------------------------------------------------------------------------
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**31 - 1))
def test_aggregation_keeps_the_largest_entry_of_every_tile(rows: int, cols: int, most: int, seed: int) -> None:
    """Each tile is shown by its entry of largest size, sign kept; no more than `most` cells a side."""
    M = torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    small, k = aggregate(M, most)
    assert max(small.shape) <= most
    for i in range(small.shape[0]):
        for j in range(small.shape[1]):
            tile = M[i * k : (i + 1) * k, j * k : (j + 1) * k]
            assert float(small[i, j]) in tile.flatten().tolist()
            assert abs(float(small[i, j])) == float(tile.abs().max())


def test_only_exact_zeros_are_blank() -> None:
    """Level 0 (transparent) is kept for exact zeros; the weakest entry that is not zero has level 1, the top LEVELS."""
    M = torch.tensor([[0.0, 1e-300], [-1.0, 1e-2]], dtype=torch.float64)
    assert levels(M, -4, 0).tolist() == [[0, 1], [LEVELS, 1 + round((LEVELS - 1) / 2)]]


def test_the_colour_scale_spans_three_to_eight_decades() -> None:
    """Its top holds the largest entry of all the matrices."""
    narrow, wide = torch.tensor([[0.5, 0.6]]), torch.logspace(-30, 2.5, 50)[None]
    assert decades(narrow) == (-DECADES[0], 0)
    assert decades(narrow, wide) == (3 - DECADES[1], 3)


def test_a_png_holds_the_codes() -> None:
    """Decoded by hand, the picture has the codes, its palette the colours, and code 0 no opacity."""
    codes = np.array([[0, 1], [2, 1]], dtype=np.uint8)
    blob = png(codes, ["#010203", "#fffefd"])
    chunks, at = {}, 8
    while at < len(blob):
        (size,) = struct.unpack(">I", blob[at : at + 4])
        kind, body = blob[at + 4 : at + 8], blob[at + 8 : at + 8 + size]
        assert struct.unpack(">I", blob[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(height, width + 1)
    assert (lines[:, 0] == 0).all()
    assert (lines[:, 1:][:: height // 2, :: width // 2] == codes).all()
    assert chunks[b"PLTE"][3:] == bytes([1, 2, 3, 255, 254, 253])
    assert chunks[b"tRNS"] == b"\x00\xff\xff"


# --- heat map -------------------------------------------------------------------------------------------------------
def test_a_zero_block_says_so_in_the_picture(record, variants) -> None:
    """H_f(V,V) = 0 is written as `exactly 0` once for softmax; linear attention has three such blocks."""
    said = [row for row in values(heat_map(record).spec) if row.get("text") == EN("exactly_zero")]
    assert len(said) == 1
    assert said[0]["x"] == said[0]["y"] == 160
    linear = values(heat_map(variants["linear"]).spec)
    assert sum(row.get("text") == EN("exactly_zero") for row in linear) == 3
    assert "query·query, key·key, value·value" in heat_map(variants["linear"]).headline


def test_the_heat_map_says_when_it_aggregates(record, variants) -> None:
    """300 rows are shown as tiles of 2 x 2 and the caption says it; 192 rows are shown as they are."""
    assert EN("heat_tiles", tile=2, side="300") in heat_map(variants["large"]).caption
    assert "tile" not in heat_map(record).caption


def test_the_heat_headline_follows_its_threshold(record) -> None:
    """From three times the next norm on a block `rules`; below that none does."""
    norms = {f"norm/total/{b}": 1.0 for b in AttentionAnswer(record).blocks}
    loud = dataclasses.replace(
        record, scalars={**record.scalars, **{k: Estimate(v) for k, v in (norms | {"norm/total/W_V,W_V": 3.0}).items()}}
    )
    quiet = dataclasses.replace(
        record, scalars={**record.scalars, **{k: Estimate(v) for k, v in (norms | {"norm/total/W_V,W_V": 2.9}).items()}}
    )
    assert heat_map(loud).headline.startswith("The value·value block dominates: its norm is 3 times")
    assert heat_map(quiet).headline.startswith("No block dominates: the strongest, value·value, has 2.9 times")


def test_sign_is_told_without_colour(record) -> None:
    """One picture per sign, each hidden when the other is asked for, and the share of negative entries in the table."""
    text = json.dumps(heat_map(record).spec)
    assert "sign == 'negative' ? 0 : 1" in text
    assert "sign == 'positive' ? 0 : 1" in text
    H = record.tensors["H_o"] + record.tensors["H_f"]
    row = heat_map(record).table.rows[0]
    assert row[1] == "query·query"
    assert row[4] == pytest.approx(float((H[:64, :64] < 0).double().mean()))


# --- spectrum -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["whole", "large", "linear", "one", "saturated", "small"])
def test_every_eigenvalue_is_counted_once(name, record, variants) -> None:
    """Bars of a matrix add up to its eigenvalues that are not zero; each lies in its bar; words tell the counts."""
    rec = record if name == "whole" else variants[name]
    rows = values(spectrum(rec).spec)
    read = AttentionAnswer(rec)
    for i, part in enumerate(("total", "outer", "functional")):
        lam = read.eigenvalues(part)
        kept = lam[lam.abs() > read.zero_tolerance(part)]
        bars = [row for row in rows if row.get("part") == part]
        assert sum(row["n"] for row in bars) == len(kept)
        for row in bars:
            inside = ((kept >= row["x"] - 1e-12 * abs(row["x"])) & (kept < row["x2"] + 1e-12 * abs(row["x2"]))).sum()
            assert int(inside) == row["n"]
        said = [row["text"] for row in rows if "at" in row and i < row["y"] < i + 1]
        counts = [int((kept < 0).sum()), len(lam) - len(kept), int((kept > 0).sum())]
        assert said == [EN(f"spectrum_{k}", count=n) for k, n in zip(("left", "middle", "right"), counts, strict=True)]


def test_the_spectrum_headline_is_written_from_the_eigenvalues(record) -> None:
    """Share, largest and smallest eigenvalue are those of the record; without negative ones it says so."""
    lam = record.tensors["eigenvalues"]
    said = spectrum(record).headline
    assert percent(record.scalars["negative_share"].value) in said
    assert number(float(lam[-1])) in said
    assert number(float(lam[0])) in said
    bowl = dataclasses.replace(
        changed(record, negative_share=0.0), tensors={**record.tensors, "eigenvalues": lam.abs().sort().values}
    )
    assert spectrum(bowl).headline.startswith("None of the 192 directions curves down")


# --- blocks ---------------------------------------------------------------------------------------------------------
def test_bars_are_the_norms_of_the_record(record) -> None:
    """Twelve bars, each as long as its norm; zero says `exactly 0`."""
    rows = [row for row in values(blocks(record).spec) if "norm" in row]
    assert len(rows) == 12
    for row in rows:
        part, name = row["which"], next(b for b in AttentionAnswer(record).blocks if EN.block(b) == row["block"])
        assert row["norm"] == record.scalars[f"norm/{part}/{name}"].value
    assert [row["text"] for row in rows if row["norm"] == 0] == [EN("exactly_zero")]


def test_bars_turn_logarithmic_when_sizes_differ_too_much(record, variants) -> None:
    """Norms of scale 0.03 span many decades: log axis, and the caption says where it starts."""
    assert blocks(record).caption == EN("blocks_caption")
    assert "logarithmic" in blocks(variants["small"]).caption
    assert '"type": "log"' in json.dumps(blocks(variants["small"]).spec)


def test_the_blocks_headline_counts_the_blocks_gauss_newton_misses(record, variants) -> None:
    """A block counts when its functional norm exceeds its outer norm, and is not mere round-off of the largest."""
    s = record.scalars
    names = AttentionAnswer(record).blocks
    lead = [b for b in names if s[f"norm/functional/{b}"].value > s[f"norm/outer/{b}"].value]
    assert blocks(record).headline.startswith(f"In {len(lead)} of 6 blocks")
    assert all(EN.block(b) in blocks(record).headline for b in lead)
    assert blocks(variants["saturated"]).headline == EN("blocks_head_round_off")
    assert blocks(variants["one"]).headline == EN("blocks_head_none")


# --- growth ---------------------------------------------------------------------------------------------------------
def test_slopes_stand_beside_the_papers_exponents(record) -> None:
    """Each block shows its fitted slope and, in brackets, the paper's exponent; a zero block says so."""
    shown = [row["slope"] for row in values(growth(record).spec) if "slope" in row]
    want = []
    for part in ("outer", "functional"):
        for block in AttentionAnswer(record).blocks:
            slope = record.scalars.get(f"slope/{part}/{block}")
            paper = record.scalars.get(f"paper/{part}/{block}")
            want.append(f"{slope.value:.2f} [{number(paper.value)}]" if slope else EN("exactly_zero"))
    assert sorted(shown) == sorted(want)


def test_the_growth_headline_sees_a_slope_that_is_off(record) -> None:
    """Within 0.05 of the paper all agree; a slope off by 0.2 is counted and named."""
    assert EN("growth_head_agree", count=11, gap=number(0.0048, 1)) in growth(record).headline
    off = dataclasses.replace(
        record, scalars={**record.scalars, "slope/functional/W_K,W_K": Estimate(5.2, 0.01, "estimate")}
    )
    assert "1 of 11 fitted slopes differ" in growth(off).headline
    assert "key·key (functional H_f), by 0.2" in growth(off).headline


def test_saturation_begins_where_the_entropy_falls(record, variants) -> None:
    """At the scale found the entropy, interpolated, is the threshold; a sweep that ends early has none."""
    at = AttentionAnswer(record).saturates_at()
    entropy, scales = record.tensors["growth_entropy"].numpy(), record.tensors["scales"].numpy()
    assert np.interp(math.log(at), np.log(scales), entropy) == pytest.approx(SATURATED)
    assert AttentionAnswer(variants["small"]).saturates_at() is None
    assert EN("band_saturated") in json.dumps(growth(record).spec)
    assert EN("band_saturated") not in json.dumps(growth(variants["small"]).spec)


def test_moments_tell_when_attention_picks_one_key(record, variants) -> None:
    """M_k over scale^k starts at 1; the headline says so where M2 is gone, and keeps to what it kept elsewhere."""
    figure = moments(record)
    assert figure.headline.startswith("At scale 30 the spread M2")
    assert moments(variants["small"]).headline.startswith("Up to scale 0.3 the spread M2")
    first, last = figure.table.rows[0], figure.table.rows[-1]
    assert last[2] < 0.01 * first[2]
    assert last[1] > first[1]


def test_without_a_sweep_there_is_no_growth_figure(record, variants) -> None:
    """A figure whose data are missing is absent, not empty."""
    assert growth in drawn(record)
    assert growth not in drawn(variants["large"])


# --- all figures ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("texts", [EN, KO], ids=lambda t: t.lang)
@pytest.mark.parametrize("name", ["large", "linear", "one", "saturated", "small"])
def test_every_corner_can_be_drawn(name, texts, variants) -> None:
    """One parameter a side, exact zeros, saturation, 300 rows: a valid chart, words, a table, nothing to fetch."""
    for draw in drawn(variants[name]):
        figure = draw(variants[name], texts, DARK)
        assert figure.headline
        assert figure.reading
        assert figure.not_meaning
        assert figure.table.rows
        assert not re.search(r'"url": "(?!data:)', json.dumps({k: v for k, v in figure.spec.items() if k != "$schema"}))
        assert texts is KO or "<svg" in figure.svg()


def test_the_python_of_a_figure_draws_it_again(record, tmp_path) -> None:
    """Run as written on the saved record, the snippet's last line is the same chart."""
    record.save(tmp_path)
    for draw in drawn(record):
        figure = draw(record)
        *lines, last = figure.python.strip().splitlines()
        scope: dict = {}
        exec("\n".join(lines).replace('"RUN"', repr(str(tmp_path))), scope)
        assert eval(last, scope).to_dict() == figure.spec


def test_a_notebook_gets_the_live_chart_and_the_words(record) -> None:
    """The bundle has the Vega-Lite specification, HTML with picture and words, and plain text."""
    figure = blocks(record)
    bundle = figure._repr_mimebundle_()
    (live,) = [kind for kind in bundle if "vegalite" in kind]
    assert bundle[live] == figure.spec
    assert "<svg" in bundle["text/html"]
    assert figure.not_meaning[:30] in bundle["text/html"]
    assert figure.headline in bundle["text/plain"]


def test_a_chart_alone_shows_without_a_network(record) -> None:
    """`figure.chart` and charts made from it come as a specification and a picture; no script that loads Vega."""
    for chart in (blocks(record).chart, blocks(record).chart.properties(title="mine")):
        bundle = chart._repr_mimebundle_()
        assert "text/html" not in bundle
        assert bundle["image/svg+xml"].startswith("<svg")
        assert "cdn" not in str(bundle)
        (live,) = [kind for kind in bundle if "vegalite" in kind]
        assert bundle[live] == chart.to_dict()


def test_a_csv_loses_nothing(record) -> None:
    """Numbers in the CSV are the record's to the last bit."""
    lines = spectrum(record).table.csv().splitlines()
    assert len(lines) == 193
    assert [float(line.split(",")[1]) for line in lines[1:]] == record.tensors["eigenvalues"].tolist()


def test_figures_are_exported_offline(variants, tmp_path) -> None:
    """Every figure in every format, with the right first bytes; an unknown format is refused at once."""
    paths = export_figures(variants["one"], tmp_path / "out")
    assert [p.name for p in paths[:3]] == ["heat_map.svg", "heat_map.png", "heat_map.pdf"]
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    assert all(p.read_bytes().startswith(starts[p.suffix]) for p in paths)
    with pytest.raises(UnknownName, match=r"'pgn' is not a figure format.*Did you mean `png`"):
        export_figures(variants["one"], tmp_path / "no", ["pgn"])
    assert not (tmp_path / "no").exists()


def test_a_record_that_lacks_something_says_what(record) -> None:
    """Another kind, a missing matrix, a matrix of the wrong size: an error that names it."""
    with pytest.raises(FileError, match="kind 'other'"):
        heat_map(dataclasses.replace(record, kind="other"))
    with pytest.raises(InputError, match="no tensor 'H_f'"):
        heat_map(dataclasses.replace(record, tensors={k: v for k, v in record.tensors.items() if k != "H_f"}))
    with pytest.raises(InputError, match=r"names 192 parameters but its H_o has shape \(2, 2\)"):
        heat_map(dataclasses.replace(record, tensors={**record.tensors, "H_o": torch.zeros(2, 2)}))


def test_a_model_is_called_by_the_end_of_its_path():
    """A whole path is told by its last two folders, in figures and titles; other words are told as they are."""
    assert short_name("/home/someone/runs/base/run") == "base/run"
    assert short_name("runs/base") == "runs/base"
    assert short_name("new:pre-ln,depth=6") == "new:pre-ln,depth=6"
