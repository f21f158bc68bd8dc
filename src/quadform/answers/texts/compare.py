"""Verdicts of designs side by side: the English and the Korean sentence of every key."""

SENTENCES = {
    "compare_head": (
        "Lowest loss in equal time, beyond two standard errors of the held-out loss: {name} ({loss}).",
        "같은 시간에 가장 낮은 손실 (검증 손실 표준 오차의 두 배를 넘는 차이): {name} ({loss}).",
    ),
    "compare_head_alone": (
        "{name}: loss {loss}. There is nothing to compare it with.",
        "{name}: 손실 {loss}. 비교할 모델이 없습니다.",
    ),
    "compare_head_tie": (
        "No winner: {ties} within two standard errors of {name} ({loss}).",
        "우열을 가릴 수 없습니다. 가장 낮은 손실: {name} ({loss}), 표준 오차의 두 배 안: {ties}.",
    ),
    "compare_head_short": (
        "No winner: the shortest training had {steps} steps, and losses are ranked from {limit} on.",
        "우열을 가릴 수 없습니다. 가장 짧은 학습: {steps} 단계 (순위는 {limit} 단계부터 매깁니다).",
    ),
    "compare_none": ("no winner", "우열 없음"),
    "compare_head_collapse": (
        "Tokens collapse at initialisation in {names}.",
        "초기화에서 토큰이 무너지는 모델: {names}.",
    ),
    "card_compare_title": ("Lowest loss in equal time", "같은 시간에 가장 낮은 손실"),
    "card_compare_green": ("healthy", "건강함"),
    "card_compare_yellow": ("fading", "흐려짐"),
    "card_compare_red": ("collapsed", "무너짐"),
    "card_compare_rule": (
        "Colour: worst token cosine of all models, green up to {limit0}, red above {limit1}.",
        "색: 모든 모델 중 가장 나쁜 토큰 코사인, {limit0}까지 초록, {limit1} 초과 빨강.",
    ),
}
