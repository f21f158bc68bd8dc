"""A product as two programs: what does not see the vector, run once and kept, and what does, run for every product.

    H v = jvp(grad(risk))(v):  the gradient's own pass (activations, their cotangents) is the same for every v.

One aten graph of `(primal, V) -> H V` is traced once. Nodes that no vector reaches are the *primal* part; the values
that cross into the rest are *kept*. In linear layers a gradient takes 3 matrix products, the tangent part of H alone 6
(2x), with the primal part 9 (3x); of the Gauss-Newton product 4 (1.33x) against 5. Source: [own].
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch.compile_utils import fx_graph_cse
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..kernels.products import in_halves
from ..kernels.programs import compiled, program
from ..kernels.replay import Replay, Shared

aten = torch.ops.aten

#: Operators whose result is their argument, in a graph without mutations whose views are reshapes.
_SAME = {
    aten.alias.default,
    aten.detach.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
}
#: Other views of the same numbers: kept as what they are views of.
_VIEWS = {
    aten.reshape.default,
    aten.transpose.int,
    aten.permute.default,
    aten.t.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    operator.getitem,
}
#: Operators that depend on how their argument lies in memory.
_STRIDED = {aten.as_strided.default, aten.as_strided_scatter.default}
#: Made from nothing: cheaper to make again than to keep.
_FILLED = {aten.full.default, aten.scalar_tensor.default, aten.arange.default, aten.arange.start, aten.ones.default}
_FILLED |= {aten.zeros.default}
_CONSTANT = {aten.zeros.default: 0, aten.ones.default: 1, aten.full.default: None}
#: Work on single entries, which a compiler fuses with the work that needs it.
_ENTRYWISE = {
    getattr(getattr(aten, name), overload)
    for name, overloads in {
        "add": ("Tensor", "Scalar"),
        "sub": ("Tensor", "Scalar"),
        "mul": ("Tensor", "Scalar"),
        "div": ("Tensor", "Scalar"),
        "neg": ("default",),
        "pow": ("Tensor_Scalar",),
        "exp": ("default",),
        "tanh": ("default",),
        "sigmoid": ("default",),
        "rsqrt": ("default",),
        "reciprocal": ("default",),
        "where": ("self",),
        "eq": ("Tensor", "Scalar"),
        "_to_copy": ("default",),
    }.items()
    for overload in overloads
}


class Kept(list[Tensor]):
    """What is kept at one point, and the way from there: the second program, replayed at this place where it can be."""

    run: Callable[..., Any]


class Linearised:
    """`function(primal, V)`, linear in V, as two programs.

    `at(primal)` runs the first and returns what is kept; `self(primal, kept, V)` runs the second. `compile` compiles
    the second only: the first runs once. `bytes` is the memory of what is kept. Where that is too much,
    `self.anew(primal, V)` runs both, keeping nothing; compiled, it compiles the first too.

    Compiled on a GPU, the programs are replayed from CUDA graphs, one for each point that is kept; they use `shared`
    memory in turn. `moving` leaves at the end of the primal are the batch, which `anew` copies to where its graph reads
    it; the others are read where they lie. `products` is that of `kernels.program`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        primal: Any,
        V: Any,
        *,
        compile: bool,
        products: str = "torch",
        moving: int = 0,
        shared: Shared | None = None,
    ) -> None:
        shape: list[Any] = []

        def flat(primal: Any, V: Any) -> list[Tensor]:
            out, spec = tree_flatten(function(primal, V))
            shape[:] = [spec]
            return out

        called: Any = program(flat, primal, V, compile=False)
        graph = plain(called.graph)
        if products == "halves":
            in_halves(graph)
            graph.eliminate_dead_code()
        self._primal, self._moving = len(tree_flatten(primal)[0]), moving
        first, second, kept = cut(graph, self._primal, remake=_ENTRYWISE if compile else set())
        self.bytes = sum(_bytes(n) for n in kept)
        self.nodes = len(second.graph.nodes)
        self.compile, self._shared = compile, Shared() if shared is None else shared
        self._first = first
        self._second: Callable[..., Any] = compiled(second) if compile else second
        self._anew: Callable[..., Any] | None = None
        self._shape = shape[0]

    def at(self, primal: Any) -> Kept:
        """What is kept at these weights and this batch."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            kept = Kept(self._first(*tree_flatten(primal)[0]))
        kept.run = Replay(self._second, self._primal + len(kept), self._shared) if self.compile else self._second
        return kept

    def __call__(self, primal: Any, kept: Kept, V: Any) -> Any:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return tree_unflatten(kept.run(*tree_flatten(primal)[0], *kept, *tree_flatten(V)[0]), self._shape)

    def anew(self, primal: Any, V: Any) -> Any:
        """The product at these weights and this batch, with nothing kept."""
        if self._anew is None:
            first = compiled(self._first) if self.compile else self._first

            def both(*leaves: Any) -> Any:
                at = leaves[: self._primal]
                return self._second(*at, *first(*at), *leaves[self._primal :])

            self._anew = Replay(both, self._primal - self._moving, self._shared) if self.compile else both
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return tree_unflatten(self._anew(*tree_flatten((primal, V))[0]), self._shape)


def plain(graph: fx.Graph) -> fx.Graph:
    """The graph, which has no mutations, without copies and twice computed values."""
    module: Any = graph.owning_module
    _without_strides(graph)
    for node in list(graph.nodes):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        elif node.target in _SAME or (node.target is aten._to_copy.default and _same_kind(node)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is aten.copy.default and _same_kind(node, node.args[1]):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
        elif node.target is aten.expand.default and node.args[0].target in _CONSTANT:
            _fill(graph, node)
    for node in [n for n in graph.nodes if n.target in _STRIDED]:  # reads memory: laid out as when it was traced
        with graph.inserting_before(node):
            options: Any = {"memory_format": torch.contiguous_format}
            laid_out = graph.call_function(aten.clone.default, (node.args[0],), options)
        laid_out.meta = dict(node.args[0].meta)
        node.replace_input_with(node.args[0], laid_out)
    graph.eliminate_dead_code()
    new = fx_graph_cse(graph)
    new.eliminate_dead_code()
    new.owning_module = module
    return new


def _without_strides(graph: fx.Graph) -> None:
    """Take out `as_strided` where it is its argument; others keep a contiguous one, whatever became of the copy before.

    Without copies a tensor may lie in memory in another order, of which all other operators are independent.
    """
    for node in [n for n in graph.nodes if n.target in _STRIDED]:
        of: Any = node.args[0].meta.get("val")
        size, stride, *offset = node.args[1 + (node.target is aten.as_strided_scatter.default) :]
        if list(of.shape) == list(size) and list(of.stride()) == list(stride) and not any(offset):
            node.replace_all_uses_with(node.args[1 if node.target is aten.as_strided_scatter.default else 0])
            graph.erase_node(node)
        elif not of.is_contiguous() or of.storage_offset():
            raise RuntimeError("an operator reads a tensor by its place in memory")


def cut(graph: fx.Graph, primal: int, remake: set[Any]) -> tuple[fx.GraphModule, fx.GraphModule, list[fx.Node]]:
    """The two programs and what is kept between them; `primal` placeholders come first.

    Views are taken again and filled tensors filled again in the second program; so are nodes of the kinds in `remake`
    whose arguments it has anyway.
    """
    module: Any = graph.owning_module
    places = [n for n in graph.nodes if n.op == "placeholder"]
    moving = set(places[primal:])
    for node in graph.nodes:
        if any(a in moving for a in node.all_input_nodes):
            moving.add(node)
    output = next(n for n in graph.nodes if n.op == "output")
    needed = [n for n in graph.nodes if n not in moving and any(u in moving or u is output for u in n.users)]
    here: set[fx.Node] = set(places[:primal])  # what the second program has without being given it
    kept: list[fx.Node] = []

    def made_again(node: fx.Node) -> bool:
        if node in here:
            return True
        again = node.op == "get_attr" or node.target in _FILLED or _whole(node) is not node or node.target in remake
        if again and all(made_again(a) for a in node.all_input_nodes):
            here.add(node)
            return True
        return False

    for node in needed:
        if made_again(node):
            continue
        base = _whole(node)
        kept.append(base)
        here.add(base)
        if not made_again(node):
            raise AssertionError(f"{node} cannot be made from {base}")

    order = list(graph.nodes)
    first = _program(module, order, places[:primal], set(order) - moving - {output}, list(kept))
    inside = {n for n in order if n in moving or n in here} - {output}
    second = _program(module, order, [*places[:primal], *kept, *places[primal:]], inside, output.args[0])
    return first, second, kept


def _program(
    module: fx.GraphModule, order: Sequence[fx.Node], inputs: Sequence[fx.Node], inside: set[fx.Node], result: Any
) -> fx.GraphModule:
    """The nodes `inside` as a graph of its own, from `inputs` to `result` (nodes, in lists)."""
    graph = fx.Graph(module)
    copy: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(inputs):
        copy[node] = graph.placeholder(f"in_{i}")
        copy[node].meta = dict(node.meta)
    for node in order:
        if node in inside and node not in copy:
            copy[node] = graph.node_copy(node, lambda n: copy[n])
    graph.output(fx.node.map_arg(result, lambda n: copy[n]))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _whole(node: fx.Node) -> fx.Node:
    """What a node is a view of: itself for results of work, also those of operators with several results."""
    while node.target in _VIEWS and not _of_several(node):
        node = node.all_input_nodes[0]
    return node


def _of_several(node: fx.Node) -> bool:
    """An entry of the results of an operator that is no view (`native_layer_norm` gives three)."""
    return node.target is operator.getitem and node.args[0].target not in _VIEWS  # type: ignore[union-attr]  # a node


def _same_kind(node: fx.Node, argument: Any = None) -> bool:
    """Whether a node is its first (or that) argument, as far as shape, type and device can tell."""
    of: Any = node.args[0] if argument is None else argument
    a, b = of.meta.get("val"), node.meta.get("val")
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _fill(graph: fx.Graph, node: fx.Node) -> None:
    """A constant spread over a shape as a filled tensor: some operators write into a copy with the same strides."""
    base: Any = node.args[0]
    value = base.args[1] if base.target is aten.full.default else _CONSTANT[base.target]
    like = node.meta["val"]
    with graph.inserting_before(node):
        options = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
        new = graph.call_function(aten.full.default, (list(like.shape), value), options)
    new.meta = {**node.meta, "val": like.new_empty(like.shape)}
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
