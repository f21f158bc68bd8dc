"""Verdicts of training runs: the English and the Korean sentence of every key."""

SENTENCES = {
    "training_summary": (
        "Training took the loss from {first} (step {at}) to {last} (step {steps}).",
        "학습하는 동안 손실이 {first}({at}단계)에서 {last}({steps}단계)까지 바뀌었습니다.",
    ),
    "card_exact_title": ("Held-out questions answered exactly", "정확히 답한 검증 문제"),
    "card_exact": (
        "Share of questions never seen in training that greedy decoding answers without a mistake.",
        "학습에서 보지 못한 문제를 탐욕 디코딩이 실수 없이 답한 비율입니다.",
    ),
    "card_exact_green": ("learned", "배웠음"),
    "card_exact_yellow": ("partly learned", "일부 배움"),
    "card_exact_red": ("not learned", "배우지 못함"),
    "card_exact_rule": ("Green from {limit0}, red below {limit1}.", "{limit0}부터 초록, {limit1} 미만이면 빨강."),
    "card_fit_title": ("Loss on held-out data", "따로 떼어 둔 데이터의 손실"),
    "card_fit": ("The training loss is {train}.", "학습 손실: {train}."),
    "card_fit_green": ("generalises", "일반화함"),
    "card_fit_yellow": ("some gap", "차이가 있음"),
    "card_fit_red": ("overfits", "과적합"),
    "card_fit_rule": (
        "Over the training loss: green up to {limit0}, red above {limit1}.",
        "학습 손실과의 비: {limit0}까지 초록, {limit1} 초과면 빨강.",
    ),
}
