"""The Python that makes a state again, ready to run: its last line prints the extreme eigenvalues the page shows."""

from __future__ import annotations

from .state import State


def snippet(state: State, given: tuple[str, ...] = ()) -> str:
    """A script for a state; `given` names the tensors of an uploaded file."""
    return _open(state, given) if state.closed else _whole(state)


def _whole(state: State) -> str:
    settings = ", ".join(f"{name}={value!r}" for name, value in state.changes().items() if name != "upload")
    lines = ["from quadform.explorer import State, measure", ""]
    if state.data == "upload":
        lines = [
            "from quadform.explorer import State, measure",
            "from quadform.explorer.data import Uploads, read",
            "",
            "uploads = Uploads()",
            'file = "tokens.npy"  # the file you gave the page',
            'name = uploads.add(read(open(file, "rb").read(), file))',
            f"record = measure(State({settings}, upload=name), uploads)",
        ]
    else:
        lines.append(f"record = measure(State({settings}))")
    return "\n".join([*lines, 'print(record.scalars["lambda_min"].value, record.scalars["lambda_max"].value)', ""])


def _open(state: State, given: tuple[str, ...]) -> str:
    """One layer, by the names of the theory."""
    lines = ["import quadform as qf", "import torch", ""]
    tokens = state.tokens
    if state.data == "upload":
        lines += [
            "from quadform.explorer.data import read",
            "",
            'file = "tokens.npy"  # the file you gave the page',
            'given = read(open(file, "rb").read(), file).tensors',
            f'X, W_Q, W_K, W_V, Y = qf.toy(*given["X"].shape, seed={state.seed})',
            *(f'{name} = given["{name}"]' for name in given),
        ]
    else:
        if state.data == "text":
            tokens = min(tokens, len(state.text.split()))
        lines.append(f"X, W_Q, W_K, W_V, Y = qf.toy(tokens={tokens}, d_model={state.dim}, seed={state.seed})")
        if state.data == "text":
            lines.insert(2, "from quadform.explorer import words_as_tokens")
            lines.insert(3, "")
            lines.append(f"X = words_as_tokens({state.text!r}, dim={state.dim}, seed={state.seed}, most={tokens})")
    options = [] if state.temperature == 1 else [f"temperature={state.temperature!r}"]
    scaled = "X" if state.scale == 1 else f"{state.scale!r} * X"
    if state.attention == "linear":
        call = f"qf.theory.LinearAttentionLayer({', '.join([scaled, 'W_Q', 'W_K', 'W_V', 'Y', *options])})"
    else:
        if state.sink:
            lines += ["bias = torch.zeros(len(X), len(X), dtype=X.dtype)", f"bias[:, 0] = {state.sink!r}  # the sink"]
            options.append("mask=bias")
        if state.factor == "single":
            weights = [scaled, "W_Q @ W_K.T", "W_V", "Y", "d_K=W_Q.shape[1]"]
            call = f"qf.theory.MergedLayer({', '.join([*weights, *options])})"
        else:
            call = f"qf.attention_hessian({', '.join([scaled, 'W_Q', 'W_K', 'W_V', 'Y', *options])})"
    lines += [f"layer = {call}", "H = layer.hessian().dense()  # exact, closed form"]
    return "\n".join(
        [*lines, "eigenvalues = torch.linalg.eigvalsh(H)", "print(float(eigenvalues[0]), float(eigenvalues[-1]))", ""]
    )
