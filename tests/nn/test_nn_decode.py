"""Decoding against exhaustive search, teacher forcing, the uncached pass, and itself one by one."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quadform.core.errors import InputError
from quadform.core.spec import DESIGNS, design
from quadform.nn import Sampling, Search, Transformer, generate, log_probabilities, static
from quadform.nn.beam import Pool, _proved, beam_search
from quadform.nn.decode import Run, pad_rows

BOS, EOS, VOCAB = 1, 2, 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a GPU static steps are recorded and replayed
INPUTS = [[3, 4, 3], [4], [3, 3], [4, 3, 4, 4, 3], [3, 4, 4, 4], [4, 4]]


def make(name="pre-ln", kind="encoder-decoder", vocab=VOCAB, seed=0, **settings):
    """A small model whose next-token distributions are far from uniform and do end sentences."""
    settings = {"positions": "sinusoidal", "depth": 2, "d_model": 8, "heads": 2} | settings
    model = Transformer(design(name, kind=kind, vocab=vocab, bos=BOS, eos=EOS, **settings), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model.to(DEVICE)


def ids(*rows):
    """Rows of tokens where the models are."""
    return torch.tensor(rows, device=DEVICE)


def whole(hypothesis):
    """The generated tokens with the end token."""
    return [*hypothesis.tokens, *([EOS] if hypothesis.finished else [])]


def every_output(length, vocab=VOCAB):
    """All outputs a search of this length can give: ended ones, and unended ones of full length."""
    for n in range(1, length + 1):
        for body in itertools.product([t for t in range(vocab) if t != EOS], repeat=n - 1):
            yield [*body, EOS]
            if n == length:
                yield from ([*body, t] for t in range(vocab) if t != EOS)


# ------------------------------------------------------------------------------------------------------- beam search
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("stop", ["bound", "count"])
@pytest.mark.parametrize(("alpha", "penalty"), [(0.0, "power"), (1.0, "power"), (-0.5, "power"), (0.6, "gnmt")])
def test_wide_beam_is_exhaustive_search(kind, stop, alpha, penalty):
    """A beam of at least V^L hypotheses returns the n best of all outputs, with their scores."""
    model, length = make(kind=kind), 3
    outputs = list(every_output(length))
    how = Search(beam=VOCAB**length, n_best=4, max_length=length, alpha=alpha, penalty=penalty, stop=stop)
    for x, found in zip(INPUTS[:3], generate(model, INPUTS[:3], how), strict=True):
        logs = log_probabilities(model, [x] * len(outputs), outputs)
        scores = [s / how.normaliser(len(y)) for s, y in zip(logs, outputs, strict=True)]
        order = sorted(range(len(outputs)), key=lambda i: -scores[i])[:4]
        assert [whole(h) for h in found] == [outputs[i] for i in order]
        assert [h.score for h in found] == pytest.approx([scores[i] for i in order], abs=1e-10)


def test_penalties():
    """score = log_prob / n^alpha or ((5 + n) / 6)^alpha, n counting the end token."""
    assert Search(alpha=0.5).normaliser(9) == pytest.approx(3)
    assert Search(alpha=2, penalty="gnmt").normaliser(7) == pytest.approx(4)
    model = make()
    for penalty in ("power", "gnmt"):
        how = Search(beam=3, n_best=3, max_length=6, alpha=0.7, penalty=penalty)
        for h in itertools.chain(*generate(model, INPUTS, how)):
            n = len(whole(h))
            divisor = n**0.7 if penalty == "power" else ((5 + n) / 6) ** 0.7
            assert h.score == pytest.approx(h.log_prob / divisor, abs=1e-12)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@given(seed=st.integers(0, 1000), alpha=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]))
@settings(max_examples=8)
def test_beam_one_is_greedy(kind, seed, alpha):
    """Beam search with one hypothesis takes the likeliest token at every step, whatever the penalty."""
    model = make(kind=kind, seed=seed)
    how = Search(beam=1, max_length=7, alpha=alpha)
    greedy = generate(model, INPUTS, how)
    with torch.inference_mode():
        memory, starts = None, INPUTS
        if kind == "encoder-decoder":
            source, mask = pad_rows(INPUTS, 0, DEVICE)
            memory, starts = model.encode(source, mask), [[BOS]] * len(INPUTS)
            memory.keys_values = {}
        beam = beam_search(Run(model, [list(s) for s in starts], memory, how), how)
    assert [[h.tokens for h in hs] for hs in beam] == [[h.tokens for h in hs] for hs in greedy]
    for a, b in zip(itertools.chain(*beam), itertools.chain(*greedy), strict=True):
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-10)
        assert a.finished == b.finished


def naive_beam(model, x, how):
    """Beam search of one sentence by the rules written in quadform.nn.decode, in plain Python, no stop by bound."""
    live, ended = [(0.0, [])], []
    for n in range(1, how.max_length + 1):
        candidates = []
        for s, y in live:
            tokens = ids([BOS, *y])
            logs = model(tokens, source=ids(x))[0, -1].log_softmax(-1).tolist()
            for t, log in enumerate(logs):
                if t != EOS or n >= how.min_length:
                    candidates.append((s + log, [*y, t]))
        candidates.sort(key=lambda c: -c[0])
        ended += [(s / how.normaliser(n), y) for s, y in candidates[: how.beam] if y[-1] == EOS]
        live = [(s, y) for s, y in candidates if y[-1] != EOS][: how.beam]
        if how.stop == "count" and len(ended) >= how.beam and n < how.max_length:  # at the limit the live ones end
            live = []
            break
    ended += [(s / how.normaliser(how.max_length), y) for s, y in live]
    ended.sort(key=lambda c: -c[0])
    return ended[: how.n_best]


@pytest.mark.parametrize("stop", ["count", "bound"])
@given(
    seed=st.integers(0, 1000),
    beam=st.integers(1, 4),
    alpha=st.sampled_from([-1.5, -0.5, 0.0, 0.6, 1.0]),
    least=st.integers(0, 3),
)
@example(seed=1, beam=3, alpha=-1.5, least=3)  # the last of three ends at the limit
@settings(max_examples=20)
def test_beam_search_is_its_written_rule(stop, seed, beam, alpha, least):
    """The batched search equals the rule in plain Python; stopping by the bound never changes the answer."""
    model = make(seed=seed, depth=1)
    how = Search(beam=beam, n_best=min(2, beam), max_length=5, min_length=least, alpha=alpha, stop=stop)
    with torch.no_grad():
        for x, found in zip(INPUTS[:3], generate(model, INPUTS[:3], how), strict=True):
            want = naive_beam(model, x, how)
            assert [whole(h) for h in found] == [y for _, y in want]
            assert [h.score for h in found] == pytest.approx([s for s, _ in want], abs=1e-10)


@given(
    alpha=st.floats(-2, 2),
    penalty=st.sampled_from(["power", "gnmt"]),
    best=st.floats(-9, -0.1),
    ended=st.floats(-40, -0.01),
    n=st.integers(1, 8),
)
@settings(max_examples=200)
def test_bound_is_sharp(alpha, penalty, best, ended, n):
    """A sentence is proved exactly when its ended score is at least best / penalty(m) for every length m still open.

    No log-probability is gained on the way, so s = best is the most a live hypothesis can keep.
    """
    how = Search(beam=2, max_length=9, alpha=alpha, penalty=penalty)
    pool = Pool(1, 2, 9, torch.device("cpu"))
    pool.score[0, 0] = ended
    penalties = torch.tensor([1.0, *(how.normaliser(m) for m in range(1, 12))], dtype=torch.float64)
    live = torch.tensor([[best, -math.inf]], dtype=torch.float64)
    reach = max(best / how.normaliser(m) for m in range(n + 1, 10))
    assert bool(_proved(how, live, pool, torch.tensor([n]), penalties, torch.tensor([9]))) == (ended >= reach)


def test_refill_after_an_end():
    """A parent whose likeliest continuation ends still gives K live ones: beam 1 goes on when told to wait (bound)."""
    found = [
        generate(make(seed=seed, depth=1), INPUTS, Search(beam=1, max_length=8, alpha=2.0, stop="bound"))
        for seed in range(10)
    ]
    greedy = [generate(make(seed=seed, depth=1), INPUTS, Search(beam=1, max_length=8, alpha=2.0)) for seed in range(10)]
    better = [
        b[0].score - g[0].score for bs, gs in zip(found, greedy, strict=True) for b, g in zip(bs, gs, strict=True)
    ]
    assert min(better) >= -1e-10
    assert max(better) > 1e-3


def test_bound_waits_for_the_best():
    """With alpha = 1, "count" may return an early short answer where "bound" finds one at least as good."""
    gains = []
    for seed in range(30):
        model = make(seed=seed, depth=1)
        a, b = (
            generate(model, INPUTS, Search(beam=2, max_length=8, alpha=1.0, stop=stop)) for stop in ("count", "bound")
        )
        gains += [y[0].score - x[0].score for x, y in zip(a, b, strict=True)]
    assert min(gains) >= -1e-10
    assert max(gains) > 1e-3


# ----------------------------------------------------------------------------------------- scores, caches, batches
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize(
    "how", [Search(max_length=6), Search(beam=3, n_best=3, max_length=6), Sampling(max_length=6, top_p=0.9)]
)
def test_scores_are_teacher_forced(kind, how):
    """The returned log-probability is the one teacher forcing gives the returned tokens."""
    model = make(kind=kind)
    for x, found in zip(INPUTS, generate(model, INPUTS, how), strict=True):
        for h in found:
            assert h.log_prob == pytest.approx(log_probabilities(model, [x], [whole(h)])[0], abs=1e-10)


@pytest.mark.parametrize("name", DESIGNS)
def test_cached_decoding_is_uncached_decoding(name):
    """Beam search from a KV cache and from an X-cache equals the search that runs every prefix anew."""
    kind = "decoder" if name == "deepnorm" else "encoder-decoder"
    model = make(name, kind=kind, d_model=16, heads=4)
    results = [
        generate(model, INPUTS, Search(beam=3, n_best=2, max_length=6, cache=cache))
        for cache in ("none", "kv", "x", "static")
    ]
    for other in results[1:]:
        for a, b in zip(itertools.chain(*results[0]), itertools.chain(*other), strict=True):
            assert a.tokens == b.tokens
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-9)


@pytest.mark.parametrize("variant", [{"positions": "rotary"}, {"kv_heads": 1}, {"linear": True}, {"merged": True}])
def test_cached_decoding_of_variants(variant):
    """So it is with rotary positions, grouped heads, linear attention and a merged W_QK."""
    model = make(kind="decoder", **variant)
    a, *others = (generate(model, INPUTS, Search(beam=3, max_length=6, cache=c)) for c in ("none", "kv", "static"))
    for b in others:
        for x, y in zip(itertools.chain(*a), itertools.chain(*b), strict=True):
            assert x.tokens == y.tokens
            assert x.log_prob == pytest.approx(y.log_prob, abs=1e-9)


@pytest.mark.parametrize("how", [Search(max_length=9), Search(beam=3, max_length=9), Sampling(max_length=9)])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_static_steps_move_and_serve_again(how, kind, monkeypatch):
    """Sentences that end move the rest to smaller steps, later batches reuse the steps: the same answers."""
    monkeypatch.setattr(static, "STEP", 1)
    monkeypatch.setattr(static, "WINDOW", 2)
    made, moved = [], []
    init, take = static.Step.__init__, static.Step.take
    monkeypatch.setattr(static.Step, "__init__", lambda self, *a: (made.append(a[1]), init(self, *a))[1])
    monkeypatch.setattr(static.Step, "take", lambda self, *a: (moved.append(self.sentences), take(self, *a))[1])
    generator = torch.Generator().manual_seed(0)
    inputs = [(3 + torch.randint(2, (1 + i // 12,), generator=generator)).tolist() for i in range(36)]
    model = make("sas", kind=kind, d_model=16, heads=4, seed=0 if kind == "decoder" else 3)
    with torch.no_grad():  # then sentences end here and there
        model.embed.W_E.mul_(0.1)
    expect = generate(model, inputs, how, batch_size=6)
    found = generate(model, inputs, dataclasses.replace(how, cache="static"), batch_size=6)
    assert len({len(h[0].tokens) for h in expect}) > 2
    assert [h[0].tokens for h in found] == [h[0].tokens for h in expect]
    assert [h[0].log_prob for h in found] == pytest.approx([h[0].log_prob for h in expect], abs=1e-9)
    assert len(moved) > len(made)  # steps served more than once
    assert len(set(moved)) > 1  # and some were smaller than others


def test_x_cache_halves_the_memory():
    """Layers without W_V keep d numbers a token in the X-cache, 2 d in the KV cache."""
    model = make("sas", kind="decoder", d_model=16, heads=4, depth=3)
    sizes = {}
    for kind in ("kv", "x"):
        caches = model.caches(10, kind)
        model.hidden(ids([3, 4]), cache=caches)
        sizes[kind] = [c.bytes for c in caches]
    assert sizes["kv"] == [2 * 10 * 16 * 8] * 3
    assert sizes["x"] == [2 * 10 * 16 * 8, 10 * 16 * 8, 10 * 16 * 8]  # block 1 has a W_V


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize(
    "how", [Search(max_length=7), Search(beam=4, n_best=2, max_length=7), Sampling(max_length=7, temperature=1.5)]
)
def test_batch_is_one_by_one(kind, how):
    """Inputs of unequal length in one batch give what each gives alone, sampling included."""
    model = make(kind=kind)
    together = generate(model, INPUTS, how)
    for size in (1, 4):
        apart = generate(model, INPUTS, how, batch_size=size)
        for a, b in zip(itertools.chain(*together), itertools.chain(*apart), strict=True):
            assert a.tokens == b.tokens
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-10)


def test_forced_prefixes():
    """A forced prefix is not scored and not returned; decoding after it continues the teacher-forced text."""
    model = make()
    prefixes = [[BOS, 3], [BOS], [BOS, 4, 4], [BOS], [BOS, 3, 4, 3], [BOS, 4]]
    for how in (Search(max_length=5), Search(beam=3, max_length=5)):
        for x, prefix, (h,) in zip(INPUTS, prefixes, generate(model, INPUTS, how, prefixes=prefixes), strict=True):
            want = log_probabilities(model, [x], [whole(h)], prefixes=[prefix])[0]
            assert h.log_prob == pytest.approx(want, abs=1e-10)
            (alone,) = generate(model, [x], how, prefixes=[prefix])[0]
            assert alone.tokens == h.tokens


def test_lengths():
    """min_length holds the end token back, max_length cuts; both count the end token."""
    model = make(seed=3)
    for beam in (1, 3):
        for h in itertools.chain(*generate(model, INPUTS, Search(beam=beam, max_length=4, min_length=3))):
            assert 3 <= len(whole(h)) <= 4
            assert h.finished or len(h.tokens) == 4
    decoder = make(kind="decoder")
    for beam in (1, 3):  # one token each, also after prompts of unequal length
        for x, (h,) in zip(INPUTS, generate(decoder, INPUTS, Search(beam=beam, max_length=1)), strict=True):
            assert whole(h) == [int(decoder(ids(x))[0, -1].argmax())]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("stop", ["count", "bound"])
@pytest.mark.parametrize("alpha", [-0.5, 0.6])
def test_length_beyond_the_source(beam, stop, alpha):
    """`beyond` b: in a batch of unequal sources each answer is that of max_length = its source + b, alone."""
    model = make(seed=3)
    how = Search(beam=beam, stop=stop, alpha=alpha, max_length=9, beyond=1)
    lengths = set()
    for x, found in zip(INPUTS, generate(model, INPUTS, how), strict=True):
        limit = min(len(x) + 1, 9)
        (alone,) = generate(model, [x], dataclasses.replace(how, beyond=None, max_length=limit))
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-10)
        lengths |= {len(whole(h)) - limit for h in found}
    assert max(lengths) == 0
    drawn = generate(model, INPUTS, Sampling(seed=2, max_length=9, beyond=0))
    assert all(len(whole(h)) <= len(x) for x, (h,) in zip(INPUTS, drawn, strict=True))
    with pytest.raises(InputError, match="a decoder does not have"):
        generate(make(kind="decoder"), INPUTS, how)
    with pytest.raises(InputError, match="beyond is a whole number"):
        Search(beyond=-1)


def test_min_length_is_exact():
    """The end token may come exactly at min_length: greedy search equals the plain rule, and some do end there."""
    ended = 0
    for seed in range(12):
        model, how = make(seed=seed, depth=1), Search(max_length=6, min_length=3)
        with torch.no_grad():
            for x, (h,) in zip(INPUTS[:3], generate(model, INPUTS[:3], how), strict=True):
                assert whole(h) == naive_beam(model, x, how)[0][1]
                ended += len(whole(h)) == 3 and h.finished
    assert ended


def test_no_end_token():
    """Without an eos in the config every hypothesis runs to max_length."""
    model = Transformer(design="sas-p", depth=1, d_model=8, heads=2, vocab=6, dtype=torch.float64)
    for beam in (1, 3):
        for h in itertools.chain(*generate(model, [[1, 2], [3]], Search(beam=beam, max_length=5))):
            assert len(h.tokens) == 5
            assert not h.finished


# --------------------------------------------------------------------------------------------------------- sampling
def frequencies(model, how_of_seed, draws=3000):
    counts = torch.zeros(VOCAB)
    for h in itertools.chain(*generate(model, [[3, 4]] * draws, how_of_seed, batch_size=draws)):
        counts[whole(h)[0]] += 1
    return counts / draws


def test_sampling_distribution():
    """Drawn tokens follow p^(1/temperature), cut to top_k or to the smallest set of mass top_p; 5 standard errors."""
    model = make(kind="decoder")
    logits = model(ids([3, 4]))[0, -1].detach().cpu()
    for temperature in (0.7, 1.0, 2.0):
        p = (logits / temperature).softmax(-1)
        got = frequencies(model, Sampling(temperature=temperature, max_length=1))
        assert ((got - p).abs() <= 5 * (p * (1 - p) / 3000).sqrt() + 1e-12).all()
    p = logits.softmax(-1)
    ranked = p.argsort(descending=True)
    got = frequencies(model, Sampling(top_k=2, max_length=1))
    q = torch.zeros(VOCAB, dtype=p.dtype).scatter(0, ranked[:2], p[ranked[:2]] / p[ranked[:2]].sum())
    assert ((got - q).abs() <= 5 * (q * (1 - q) / 3000).sqrt() + 1e-12).all()
    mass = 0.5 * (p[ranked[0]] + p[ranked[:2]].sum()).item()  # between one token and two: two stay
    got = frequencies(model, Sampling(top_p=mass, max_length=1))
    assert ((got - q).abs() <= 5 * (q * (1 - q) / 3000).sqrt() + 1e-12).all()


def test_sampling_limits():
    """top_k = 1 and a small temperature are greedy search; the seed decides the draws."""
    model = make()
    greedy = [h[0].tokens for h in generate(model, INPUTS, Search(max_length=6))]
    cold = [Sampling(temperature=t, max_length=6) for t in (1e-6, 1e-45, 1e-320)]
    for how in (Sampling(top_k=1, max_length=6), *cold):
        assert [h[0].tokens for h in generate(model, INPUTS, how)] == greedy
    draws = [
        [h[0].tokens for h in generate(model, INPUTS * 5, Sampling(seed=seed, max_length=6))] for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_a_padding_token_in_a_source_is_a_token():
    """A source that holds the padding token is read the same alone, in a batch, and by teacher forcing."""
    model = make(pad=0)
    alone, together = (generate(model, rows, Search(max_length=6))[0][0] for rows in ([[3, 0, 4]], [[3, 0, 4], [4]]))
    assert alone.tokens == together.tokens
    forced = log_probabilities(model, [[3, 0, 4]], [whole(alone)])[0]
    assert together.log_prob == pytest.approx(alone.log_prob, abs=1e-12)
    assert forced == pytest.approx(alone.log_prob, abs=1e-12)


def _without_bos():
    return Transformer(design("pre-ln", kind="encoder-decoder", vocab=VOCAB, depth=1, d_model=8, heads=2))


# ------------------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Search(beam=2, n_best=3), "n_best"),
        (lambda: Search(max_length=0), "max_length"),
        (lambda: Search(min_length=9, max_length=8), "min_length"),
        (lambda: Search(stop="never"), "stop is count or bound"),
        (lambda: Search(cache="w"), "a cache is"),
        (lambda: Sampling(temperature=0), "Search()"),
        (lambda: Sampling(top_p=0), "top_p"),
        (lambda: Sampling(temperature=math.nan), "above 0 and finite"),
        (lambda: Sampling(temperature=math.inf), "above 0 and finite"),
        (lambda: Sampling(top_k=2.5), "top_k"),
        (lambda: Search(beam=2.5), "whole numbers"),
        (lambda: Search(max_length=4.5), "whole number"),
        (lambda: Search(alpha=math.nan), "alpha lies between"),
        (lambda: Search(alpha=1e3), "alpha lies between"),
        (lambda: generate(make(), [[3], [4]], prefixes=[[1]]), "2 inputs, 1 prefixes"),
        (lambda: generate(make(), [[3]], batch_size=0), "batches of 0"),
        (lambda: log_probabilities(_without_bos(), [[3]], [[4]]), "no bos token"),
        (lambda: generate(make(), [[]]), "input 0 is empty"),
        (lambda: generate(make("pre-ln", "encoder"), [[3]]), "writes no text"),
        (lambda: generate(make(kind="decoder"), [[3]], prefixes=[[1]]), "prompts of a decoder"),
        (lambda: generate(make(positions="learned", seq_len=8), [[3]], Search(max_length=9)), "Lower max_length"),
    ],
)
def test_errors(call, text):
    """Settings that make no sense are refused with what to do."""
    with pytest.raises(InputError) as caught:
        call()
    assert text in str(caught.value)


def test_decoding_leaves_the_model_as_it_was():
    """Training mode, weights and gradients are untouched."""
    model = make().train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    generate(model, INPUTS, Search(beam=2, max_length=3))
    assert model.training
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert math.isfinite(model.loss({"source": ids([3]), "target": ids([1, 3, 2])}).item())
