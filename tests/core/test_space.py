"""Space: names, flat forms, views, sub-spaces."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import InputError, UnknownName
from quadform.core.space import Space, View, heads, paper_name

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)
SPACES = st.lists(SHAPES, min_size=1, max_size=4).map(lambda s: Space(tuple((f"p{i}", x) for i, x in enumerate(s))))
STACKS = st.sampled_from([None, 1, 3])


def draw(space: Space, k: int | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    return space.random(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def fused(draw_: st.DrawFn) -> Space:
    """A fused weight in one of three layouts, with views W_Q, W_K, W_V of it and their heads, and a bias.

    Columns: `(d, 3 h dk)`, Q | K | V side by side (GPT-2's c_attn). Rows: `(3 h dk, d)`, one above the other (in_proj).
    Interleaved: `(h, 3, dk)` rows per head (GPT-NeoX).
    """
    d, h, dk = draw_(st.integers(1, 4)), draw_(st.integers(1, 3)), draw_(st.integers(1, 3))
    layout = draw_(st.sampled_from(["columns", "rows", "interleaved"]))
    width = h * dk
    views = []
    for i, name in enumerate(("W_Q", "W_K", "W_V")):
        for head in (None, *range(h)):
            a, b = (0, h) if head is None else (head, head + 1)
            label = name if head is None else f"{name}[{head}]"
            if layout == "columns":
                cut = ((0, d), (i * width + a * dk, i * width + b * dk))
                views.append(View(label, "c_attn", (d, 3 * width), cut, (d, (b - a) * dk)))
            elif layout == "rows":
                cut = ((i * width + a * dk, i * width + b * dk), (0, d))
                views.append(View(label, "c_attn", (3 * width, d), cut, ((b - a) * dk, d)))
            else:
                cut = ((a, b), (i, i + 1), (0, dk), (0, d))
                views.append(View(label, "c_attn", (h, 3, dk, d), cut, ((b - a) * dk, d)))
    shape = (d, 3 * width) if layout == "columns" else (3 * width, d)
    return Space((("c_attn", shape), ("b", (3,))), tuple(views))


# --- flat forms ------------------------------------------------------------------------------------------------------
@given(SPACES, STACKS)
def test_unflatten_inverts_flatten(space: Space, k: int | None) -> None:
    """unflatten . flatten = 1 and flatten . unflatten = 1, for one vector `(n,)` and for k of them `(n, k)`."""
    v = draw(space, k)
    flat = space.flatten(v)
    assert flat.shape == ((space.size,) if k is None else (space.size, k))
    back = space.unflatten(flat)
    assert all(back[n].shape == v[n].shape and torch.equal(back[n], v[n]) for n in space.names)
    assert torch.equal(space.flatten(back), flat)


@given(SPACES)
def test_flat_form_is_row_major_in_the_order_of_the_space(space: Space) -> None:
    """`flatten(v)[slices[name]] = vec_r(v[name])`; column i of the flat form of a stack is the i-th vector."""
    v = draw(space, 2)
    flat = space.flatten({n: v[n] for n in reversed(space.names)})
    for name, where in space.slices().items():
        for i in range(2):
            assert torch.equal(flat[where, i], v[name][i].reshape(-1))


@given(SPACES, STACKS)
def test_inner_product_is_the_flat_one(space: Space, k: int | None) -> None:
    """<u, v> = u . v of the flat forms, one value per pair."""
    u, v = draw(space, k, 1), draw(space, k, 2)
    want = (space.flatten(u) * space.flatten(v)).sum(0)
    got = space.inner(u, v)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_empty_tensors_and_scalars_are_tensors_too() -> None:
    """Shapes () and (0, 3) have one and no coordinates; a stack of no vectors has flat form (n, 0)."""
    space = Space((("gain", ()), ("none", (0, 3)), ("W", (2,))))
    assert space.size == 3
    for k in (0, 2):
        v = draw(space, k)
        assert space.flatten(v).shape == (3, k)
        assert space.unflatten(space.flatten(v))["none"].shape == (k, 0, 3)
        assert space.inner(v, v).shape == (k,)


def test_space_of_tensors_and_its_description() -> None:
    """`Space.of` reads the shapes; equality is that of names, shapes and views; `str` shows them."""
    space = Space.of({"W_Q": torch.zeros(4, 2), "g": torch.zeros(())})
    assert space == Space((("W_Q", (4, 2)), ("g", ())))
    assert hash(space) == hash(Space((("W_Q", (4, 2)), ("g", ()))))
    assert (space.names, space.size, len(space), space.shape("W_Q")) == (("W_Q", "g"), 9, 2, (4, 2))
    assert str(space) == "Space(W_Q 4x2, g scalar; 9 coordinates)"
    many = Space(tuple((f"p{i}", (1,)) for i in range(8)))
    assert "and 2 more" in str(many)


def test_rename_puts_a_prefix_before_names_and_views() -> None:
    """`rename("layers.0.")` moves tensors and views together, so that theory and model share names."""
    space = Space((("W_V", (2, 4)),), heads("W_V", (2, 4), 2)).rename("layers.0.")
    assert space.names == ("layers.0.W_V",)
    assert space.select("layers.0.W_V[1]").parts == (("layers.0.W_V[1]", (2, 2)),)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Space((("a", (1,)), ("b", (1,)), ("a", (2,)))), "given twice: a"),
        (lambda: Space(()), "at least one tensor"),
        (lambda: Space((("a", (2, 2)),), (View("v", "b", (2, 2), ((0, 1), (0, 2)), (2,)),)), "needs a tensor 'b'"),
        (lambda: Space((("a", (2, 2)),), (View("v", "a", (2, 3), ((0, 1), (0, 2)), (2,)),)), "of 6 entries"),
        (lambda: Space((("a", (2, 4)),), heads("a", (2, 4), 2) * 2), "takes a name that is in use"),
        (lambda: Space((("a", (2,)),), (View("a", "a", (2,), ((0, 1),), (1,)),)), "takes a name that is in use"),
        (lambda: View("v", "a", (2, 3), ((0, 1),), (3,)), "does not give"),
        (lambda: View("v", "a", (2, 3), ((0, 1), (0, 4)), (4,)), "does not give"),
        (lambda: View("v", "a", (2, 3), ((1, 1), (0, 3)), (0,)), "does not give"),
        (lambda: View("v", "a", (2, 3), ((0, 1), (0, 3)), (2,)), "does not give"),
        (lambda: heads("W", (2, 5), 2), "cannot be cut into 2 heads"),
    ],
)
def test_malformed_spaces_are_refused(make, text: str) -> None:
    """A space that is no direct sum of named tensors, or a view that is no part of one, is an InputError."""
    with pytest.raises(InputError, match=text):
        make()


@pytest.mark.parametrize(
    ("vector", "text"),
    [
        ({"W": torch.zeros(2, 3)}, "missing g"),
        ({"W": torch.zeros(2, 3), "g": torch.zeros(()), "x": torch.zeros(1)}, "unknown x"),
        ({"W": torch.zeros(3, 2), "g": torch.zeros(())}, r"W has shape \(3, 2\); expected \(2, 3\)"),
        ({"W": torch.zeros(4, 2, 3), "g": torch.zeros(())}, "expected"),
        ({"W": torch.zeros(1, 4, 2, 3), "g": torch.zeros(1, 4)}, "expected"),
        ({"W": torch.zeros(4, 2, 3), "g": torch.zeros(5)}, r"differ in number: \[4, 5\]"),
    ],
)
def test_vectors_of_another_space_are_refused(vector: dict[str, torch.Tensor], text: str) -> None:
    """Missing, unknown, misshapen tensors and uneven stacks are InputErrors that name them."""
    with pytest.raises(InputError, match=text):
        Space((("W", (2, 3)), ("g", ()))).flatten(vector)


def test_flat_vectors_of_another_size_are_refused() -> None:
    """A flat vector is `(n,)` or `(n, k)`; one vector has no inner product with a stack."""
    space = Space((("W", (2, 3)),))
    for shape in ((5,), (6, 1, 1), ()):
        with pytest.raises(InputError, match=r"has shape \(6,\) or \(6, k\)"):
            space.unflatten(torch.zeros(shape))
    with pytest.raises(InputError, match="stack both or none"):
        space.inner(space.zeros(), space.zeros(2))


# --- names -----------------------------------------------------------------------------------------------------------
ATTENTION = Space(
    tuple((f"layers.{i}.attn.{w}", (4, 4)) for i in range(2) for w in ("W_Q", "W_K", "W_V")),
    heads("layers.0.attn.W_V", (4, 4), 4),
)


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (("layers.0.attn.W_Q",), ["layers.0.attn.W_Q"]),
        (("*.W_Q",), ["layers.0.attn.W_Q", "layers.1.attn.W_Q"]),
        (("layers.?.attn.W_K",), ["layers.0.attn.W_K", "layers.1.attn.W_K"]),
        (("*.W_V", "*.W_Q"), [f"layers.{i}.attn.{w}" for i in range(2) for w in ("W_Q", "W_V")]),
        (("*.query",), ["layers.0.attn.W_Q", "layers.1.attn.W_Q"]),
        (("layers.1.attn.Value",), ["layers.1.attn.W_V"]),
        (("layers.0.attn.W_V[2]",), ["layers.0.attn.W_V[2]"]),
        (("layers.0.attn.value[2]",), ["layers.0.attn.W_V[2]"]),
        (("layers.*.attn.W_V[*]",), [f"layers.0.attn.W_V[{i}]" for i in range(4)]),
        (("*",), list(ATTENTION.names)),
    ],
)
def test_select_by_glob_label_and_head(globs: tuple[str, ...], names: list[str]) -> None:
    """Globs, labels and heads choose tensors in the order of the space; `*` means the tensors, each once."""
    assert list(ATTENTION.select(*globs).names) == names


def test_globs_are_not_regular_expressions() -> None:
    """A dot, bracket or plus in a name stands for itself."""
    space = Space((("a.b", (1,)), ("axb", (1,)), ("a+", (1,)), ("w[12]", (1,)), ("w1", (1,))))
    assert space.select("a.b").names == ("a.b",)
    assert space.select("a+").names == ("a+",)
    assert space.select("w[12]").names == ("w[12]",)


def test_a_glob_finds_whole_tensors_and_fused_views_together() -> None:
    """`W_*` is all four matrices though W_Q, W_K, W_V are parts of `c_attn` and W_O is not; heads stay out of it."""
    views = [View(f"W_{x}", "c_attn", (2, 6), ((0, 2), (2 * i, 2 * i + 2)), (2, 2)) for i, x in enumerate("QKV")]
    halves = [View(f"W_Q[{h}]", "c_attn", (2, 6), ((0, 2), (h, h + 1)), (2, 1)) for h in range(2)]
    space = Space((("c_attn", (2, 6)), ("W_O", (2, 2))), (*views, *halves))
    assert space.select("W_*").names == ("W_O", "W_Q", "W_K", "W_V")
    assert space.select("*").names == ("c_attn", "W_O")
    assert space.select("W_Q[*]").names == ("W_Q[0]", "W_Q[1]")
    assert space.select("W_Q[*]").select("*").names == ("W_Q[0]", "W_Q[1]")


def test_an_unknown_name_says_what_there_is() -> None:
    """Few names are listed; of many, the closest are. The error is a KeyError whose text is not quoted again."""
    small = Space((("W_Q", (2, 2)), ("W_K", (2, 2)), ("W_V", (2, 2))))
    with pytest.raises(UnknownName) as caught:
        small.select("W_O")
    assert str(caught.value) == "no parameter matches 'W_O'; this space has W_Q, W_K, W_V."
    assert isinstance(caught.value, KeyError)
    large = Space(tuple((f"h.{i}.attn.c_attn.weight", (1,)) for i in range(9)))
    with pytest.raises(UnknownName) as caught:
        large.select("h.3.attn.c_atn.weight")
    assert str(caught.value).startswith(
        "'h.3.attn.c_atn.weight' matches 0 of 9 tensors. Closest names: h.3.attn.c_attn"
    )
    with pytest.raises(UnknownName, match="no parameter matches 'zz'"):
        small.shape("zz")
    for step in (small.restrict, small.embed):
        with pytest.raises(UnknownName, match="no parameter matches 'W_O'"):
            step(Space((("W_O", (2, 2)),)), {"W_O": torch.zeros(2, 2)} if step == small.embed else small.zeros())


def test_shape_of_labels_and_views() -> None:
    """`shape` answers for tensors, for labels, and for views."""
    assert ATTENTION.shape("layers.0.attn.query") == (4, 4)
    assert ATTENTION.shape("layers.0.attn.W_V[3]") == (4, 1)


def test_paper_names() -> None:
    """Labels become the paper's names, with their prefix and head; everything else stays."""
    assert paper_name("h.0.Query") == "h.0.W_Q"
    assert paper_name("key[3]") == "W_K[3]"
    assert paper_name("h.0.keyboard") == "h.0.keyboard"


# --- views and sub-spaces --------------------------------------------------------------------------------------------
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1))
def test_heads_are_equal_slices(d: int, count: int, width: int, axis: int) -> None:
    """`W[h]` holds columns (or rows) `h width .. (h+1) width`; together they tile W."""
    shape = (d, count * width) if axis else (count * width, d)
    space = Space((("W", shape),), heads("W", shape, count, axis))
    v = draw(space)
    parts = space.restrict(space.select("W[*]"), v)
    assert torch.equal(torch.cat([parts[f"W[{h}]"] for h in range(count)], dim=axis), v["W"])


@pytest.mark.parametrize("count", [3, 0, -2])
def test_a_weight_has_a_whole_number_of_heads(count: int) -> None:
    with pytest.raises(InputError, match=f"cannot be cut into {count} heads along axis 1"):
        heads("W", (4, 4), count)


@given(fused(), STACKS)
def test_fused_views_read_the_layout(space: Space, k: int | None) -> None:
    """Reading `W_K` of a fused weight equals indexing it by hand, in all three layouts."""
    v = draw(space, k)
    W = v["c_attn"]
    view = next(x for x in space.views if x.name == "W_K")
    lead = 0 if k is None else 1
    if len(view.seen_as) == 4:
        h, _, dk, d = view.seen_as
        want = W.reshape(*W.shape[:lead], h, 3, dk, d).select(lead + 1, 1).reshape(*W.shape[:lead], h * dk, d)
    else:
        want = W.chunk(3, dim=lead + (view.cut[0][0] == 0))[1]
    assert torch.equal(space.restrict(space.select("W_K"), v)["W_K"], want)


@given(fused(), st.sampled_from(["W_Q", "W_K", "W_V", "W_*", "W_V[*]", "W_?[0]", "b", "*"]), STACKS)
def test_embed_is_the_adjoint_of_restrict(space: Space, glob: str, k: int | None) -> None:
    """<R v, u> = <v, R^T u> for every selection R, fused views and heads included; and R R^T = 1."""
    sub = space.select(glob)
    v, u = draw(space, k, 1), draw(sub, k, 2)
    left = sub.inner(space.restrict(sub, v), u)
    right = space.inner(v, space.embed(sub, u))
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
    again = space.restrict(sub, space.embed(sub, u))
    assert all(torch.equal(again[n], u[n]) for n in sub.names)


@given(fused(), st.sampled_from(["W_Q", "W_V[*]", "W_*", "b"]))
def test_coordinates_index_the_flat_form(space: Space, glob: str) -> None:
    """`flatten(v)[coordinates(sub)] = sub.flatten(restrict(sub, v))`, each coordinate once."""
    sub = space.select(glob)
    v, where = draw(space), space.coordinates(sub)
    assert torch.equal(space.flatten(v)[where], sub.flatten(space.restrict(sub, v)))
    assert len(set(where.tolist())) == sub.size


@given(fused())
def test_fused_views_tile_the_tensor(space: Space) -> None:
    """Q, K, V (and all their heads) together have every coordinate of the fused tensor exactly once."""
    for glob in ("W_*", "W_?[*]"):
        where = space.coordinates(space.select(glob))
        assert sorted(where.tolist()) == list(range(math.prod(space.shape("c_attn"))))


@given(fused())
def test_overlapping_selections_are_refused(space: Space) -> None:
    """A tensor with its own part, and a matrix with its own head, are no direct sum."""
    with pytest.raises(InputError, match="'W_Q' is a part of 'c_attn', which is selected too"):
        space.select("W_Q", "c_attn")
    with pytest.raises(InputError, match="overlap; a space is a direct sum"):
        space.select("W_Q", "W_Q[0]")
    assert space.select("W_Q", "W_V[0]").names == ("W_Q", "W_V[0]")


@given(fused())
def test_a_part_of_a_part_is_a_part_of_the_whole(space: Space) -> None:
    """W_V, then its head 0: the same coordinates of the fused matrix as head 0 at once; a head of W_Q is not there."""
    outer = space.select("W_V", "b")
    inner = outer.select("W_V[0]")
    assert torch.equal(space.coordinates(outer)[outer.coordinates(inner)], space.coordinates(space.select("W_V[0]")))
    assert inner.parts == space.select("W_V[0]").parts
    with pytest.raises(UnknownName, match=r"no parameter matches 'W_Q\[0\]'"):
        outer.select("W_Q[0]")


def test_overlap_of_views_that_read_the_tensor_differently() -> None:
    """Rows of the (2, 6) reading and thirds of the flat reading overlap exactly where they share an entry."""
    row = View("row", "a", (2, 6), ((0, 1), (0, 6)), (6,))
    first = View("first", "a", (12,), ((0, 4),), (4,))
    last = View("last", "a", (12,), ((8, 12),), (4,))
    space = Space((("a", (3, 4)),), (row, first, last))
    assert space.select("row", "last").size == 10
    with pytest.raises(InputError, match="overlap"):
        space.select("row", "first")


def test_selecting_among_many_heads_is_fast() -> None:
    """Overlaps are looked for inside one tensor only: 4,096 heads of 128 tensors are selected in under two seconds."""
    import time

    parts = tuple((f"layers.{i}.W_V", (4, 32)) for i in range(128))
    space = Space(parts, tuple(v for name, shape in parts for v in heads(name, shape, 32)))
    start = time.process_time()
    assert len(space.select("*.W_V[*]")) == 4096
    assert time.process_time() - start < 2


def test_embed_copies_no_whole_tensor() -> None:
    """A selected whole tensor is passed on as it is; only the others are filled with zeros."""
    space = Space((("a", (2,)), ("b", (3,))))
    u = {"a": torch.ones(5, 2, dtype=torch.float64)}
    out = space.embed(space.select("a"), u)
    assert out["a"] is u["a"]
    assert torch.equal(out["b"], torch.zeros(5, 3, dtype=torch.float64))
