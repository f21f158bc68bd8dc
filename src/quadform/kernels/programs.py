"""A derivative of derivatives as ONE program: traced once, compiled once, reused for every vector."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from quadform.core.errors import InputError
from quadform.core.forward import alone

from .products import in_halves
from .replay import Replay


class _PlainZeros(TorchDispatchMode):
    """Tangents that are zero as filled tensors. Torch's own kind of zero has device meta while tracing, at which layer
    norm with a weight that has no tangent stops."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._efficientzerotensor.default:
            func = torch.ops.aten.zeros.default
        return func(*args, **(kwargs or {}))


class _Tracing:
    """What `torch.compiler.is_compiling()` answers while a thread traces: true in that thread, as before in others."""

    def __init__(self, otherwise: Any) -> None:
        self.thread: int | None = threading.get_ident()
        self.otherwise = otherwise

    def __bool__(self) -> bool:
        return threading.get_ident() == self.thread or bool(self.otherwise)

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    __ror__, __rand__ = __or__, __and__


@contextlib.contextmanager
def _says_that_it_compiles() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true inside, as in torch.export: models then leave out shortcuts that hang on
    values, such as those of transformers for masks of ones."""
    before = torch.compiler._is_compiling_flag
    tracing: Any = _Tracing(before)
    torch.compiler._is_compiling_flag = tracing
    try:
        yield
    finally:
        tracing.thread = None  # a compiler of another thread may have seen it, and put it back later
        torch.compiler._is_compiling_flag = before


def _free_constants(graph: torch.fx.Graph) -> None:
    """ones_like(x) and zeros_like(x) as constants, so that x itself need not be computed."""
    aten = torch.ops.aten
    for node in list(graph.nodes):
        value = {aten.ones_like.default: 1, aten.zeros_like.default: 0}.get(node.target)
        if value is None:
            continue
        like = node.meta["val"]
        with graph.inserting_before(node):
            options = {"dtype": like.dtype, "device": like.device, "pin_memory": False}
            new = graph.call_function(aten.full.default, (list(like.shape), value), options)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _reshapes(graph: torch.fx.Graph) -> None:
    """Views as reshapes: the compiler lays tensors out anew, and a view possible when traced may not be then."""
    aten = torch.ops.aten
    for node in graph.nodes:
        if node.op == "call_function" and node.target is aten.view.default:
            node.target = aten.reshape.default


def _mutates(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def compiled(graph: torch.fx.GraphModule) -> Callable:
    """The compiled program, for every layout of its arguments one.

    It is given to the compiler as it is: Dynamo would walk through it node by node to find the same graph, which took
    a third of the first product in a process with a full disk cache (decision 0445).
    """
    made: dict[Any, Callable] = {}

    def run(*leaves: Any) -> Any:
        layout = tuple(t.stride() if isinstance(t, torch.Tensor) else t for t in leaves)
        if layout not in made:
            made[layout] = _for_layout(graph, leaves)
        return made[layout](*leaves)

    return run


def _for_layout(graph: torch.fx.GraphModule, leaves: Sequence[Any]) -> Callable:
    from torch._inductor.compile_fx import compile_fx

    own = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))  # which the compiler changes
    mode = FakeTensorMode(shape_env=ShapeEnv())
    patches = {"comprehensive_padding": False} if _rows_padded(graph.graph) else None
    with alone, torch.no_grad(), tracing(TracingContext(mode)):
        run: Any = compile_fx(own, list(leaves), config_patches=patches, ignore_shape_env=True)
    return run


def _rows_padded(graph: torch.fx.Graph) -> bool:
    """Whether the compiler would pad the rows of a tensor that an attention operator reads, as log-sum-exps of 197
    tokens. Products with ViT were then 2 % off on an H200 (torch 2.11), without padding right (decision 0446)."""
    from torch._inductor import config

    read = (
        of.meta.get("val")
        for node in graph.nodes
        if str(node.target).startswith("quadform.attend")
        for of in node.all_input_nodes
    )
    return any(
        stride > config.padding_stride_threshold and stride * t.element_size() % config.padding_alignment_bytes
        for t in read
        if isinstance(t, torch.Tensor)
        for stride in t.stride()
    )


PRODUCTS = ("torch", "halves")


def program(
    function: Callable, *example: Any, compile: bool = True, products: str = "torch", replay: bool = False
) -> Callable:
    """`function`, with every `torch.func` level and custom rule inside it flattened into one graph, then compiled.

    `example` fixes shapes and types of the arguments (trees of tensors); the values do not matter; tensors that
    `function` closes over are constants of the program. Dynamo refuses an
    autograd rule that defines `jvp`, so `torch.compile(jvp(grad(f)))` stops at `attention`; the traced graph holds
    none. What the answer does not need is removed, and what is computed twice is computed once. Source: [own].

    `products` is "torch" (float32 products at torch's matmul precision) or "halves": the large ones in scaled float16,
    which has TF32's ten mantissa bits at twice its rate; see `products.in_halves`. `replay` starts a GPU's work from a
    CUDA graph from the second call on, without which the many small kernels of "halves" wait for the host; it holds the
    memory of one run for as long as the program lives (`replay.Replay`).

        hvp = program(lambda p, v: jvp(grad(loss), (p,), (v,))[1], p, v)
    """
    if products not in PRODUCTS:
        raise InputError(f"products {products!r} is unknown; use one of {', '.join(PRODUCTS)}.")
    leaves, spec = tree_flatten(example)
    shape: list[Any] = []

    def flat(*leaves):
        with _PlainZeros(), _says_that_it_compiles():
            out, out_spec = tree_flatten(function(*tree_unflatten(leaves, spec)))
        shape[:] = [out_spec]
        return out

    with alone:
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
        if any(_mutates(n) for n in graph.graph.nodes):  # before equal values are merged: one may be written into
            pure = torch.func.functionalize(graph, remove="mutations")
            graph = make_fx(pure, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    _free_constants(graph.graph)
    _reshapes(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.graph = fx_graph_cse(graph.graph)
    if products == "halves":
        in_halves(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    run = compiled(graph) if compile else graph
    run = Replay(run) if replay else run

    def called(*args):
        leaves, given = tree_flatten(args)
        if given != spec:
            raise InputError(f"the program was traced for arguments of structure {spec}; got {given}.")
        return tree_unflatten(run(*leaves), shape[0])

    called.graph = graph.graph  # type: ignore[attr-defined]  # for those who look at what was traced
    return called
