"""Verdicts of designs side by side: the English and the Korean sentence of every key."""

SENTENCES = {
    "compare_winner": (
        "Lowest loss in equal time, beyond two standard errors of the held-out loss (one seed): {name} ({loss}).",
        "같은 시간에 가장 낮은 손실 (검증 손실 표준 오차의 두 배를 넘는 차이, 시드 하나): {name} ({loss}).",
    ),
    "compare_alone": (
        "{name}: loss {loss}. There is nothing to compare it with.",
        "{name}: 손실 {loss}. 비교할 모델이 없습니다.",
    ),
    "compare_tie": (
        "No winner: {ties} within two standard errors of {name} ({loss}).",
        "우열을 가릴 수 없습니다. 가장 낮은 손실: {name} ({loss}), 표준 오차의 두 배 안: {ties}.",
    ),
    "compare_short": (
        "No winner: the shortest training had {steps} steps, and losses are ranked from {limit} on. Give a larger"
        " budget, or fewer or smaller models.",
        "우열을 가릴 수 없습니다. 가장 짧은 학습: {steps}단계 (순위는 {limit}단계부터 매깁니다). 예산을 늘리거나"
        " 모델을"
        " 줄이십시오.",
    ),
    "compare_collapse": (
        "Tokens collapse at initialization (cosine above {limit}): {names}. Deep stacks of these lose their signal.",
        "초기화에서 토큰이 무너지는 모델 (코사인 {limit} 초과): {names}. 깊게 쌓으면 신호를 잃습니다.",
    ),
    "compare_collapse_not": (
        "No design collapses at these depths; the largest token cosine is {value} ({name}).",
        "이 깊이에서 무너지는 설계는 없습니다. 가장 큰 토큰 코사인: {value} ({name}).",
    ),
    "compare_lost": (
        "Gradients change more than {limit} times between input and last block: {names}.",
        "입력과 마지막 블록 사이에서 기울기가 {limit}배 넘게 바뀌는 모델: {names}.",
    ),
    "compare_lost_not": (
        "No design loses its gradient at these depths; the largest change is {value} ({name}).",
        "이 깊이에서 기울기를 잃는 설계는 없습니다. 가장 큰 변화: {value} ({name}).",
    ),
    "compare_first": (
        "The learning rate of the first step is above the ceiling at initialization: {names}. Lower it, or warm up"
        " longer.",
        "첫 단계의 학습률이 초기화에서의 상한보다 큰 모델: {names}. 학습률을 낮추거나 워밍업을 늘리십시오.",
    ),
    "compare_peak": (
        "The peak rate {peak}, which warm-up reaches later, is above the ceiling at initialization: {names}.",
        "워밍업 뒤의 최대 학습률 {peak}: 다음 모델의 초기화에서의 상한보다 큽니다: {names}.",
    ),
    "compare_rates_fit": (
        "The peak rate {peak} is below the ceiling at initialization of every model.",
        "최대 학습률 {peak}: 모든 모델의 초기화에서의 상한보다 작습니다.",
    ),
    "compare_rates_near": (
        "The peak rate {peak} is close to the ceiling at initialization of a model.",
        "최대 학습률 {peak}: 초기화에서의 상한에 가까운 모델이 있습니다.",
    ),
    "card_compare_title": ("Lowest loss in equal time", "같은 시간에 가장 낮은 손실"),
    "card_compare_green": ("winner", "우세"),
    "card_compare_yellow": ("no winner", "우열 없음"),
    "card_compare_rule": (
        "Green: every model was trained for {limit0} steps, and all others lie two standard errors above the best.",
        "초록: 모든 모델이 {limit0}단계 이상 학습했고 나머지가 모두 표준 오차의 두 배 넘게 높음.",
    ),
    "card_collapse_title": ("Worst token cosine at initialization", "초기화에서 가장 나쁜 토큰 코사인"),
    "card_collapse_green": ("healthy", "건강함"),
    "card_collapse_yellow": ("fading", "흐려짐"),
    "card_collapse_red": ("collapsed", "무너짐"),
    "card_collapse_rule": (
        "Green up to {limit0}, red above {limit1}.",
        "{limit0}까지 초록, {limit1} 초과 빨강.",
    ),
    "card_lost_title": ("Worst gradient ratio, input over last block", "가장 나쁜 기울기 비 (입력 / 마지막 블록)"),
    "card_lost_green": ("steady", "일정함"),
    "card_lost_yellow": ("drifting", "변함"),
    "card_lost_red": ("lost", "잃음"),
    "card_lost_rule": (
        "Green within a factor {limit0} of 1, red beyond {limit1}.",
        "1에서 {limit0}배 안이면 초록, {limit1}배를 벗어나면 빨강.",
    ),
    "card_rates_title": ("Lowest learning-rate ceiling", "가장 낮은 학습률 상한"),
    "card_rates_green": ("fits", "맞음"),
    "card_rates_yellow": ("warm up", "워밍업 필요"),
    "card_rates_red": ("too high", "너무 큼"),
    "card_rates_rule": (
        "At initialization. Red: the rate of the first step is above it in some model. Yellow: the peak is.",
        "초기화에서의 값. 빨강: 첫 단계의 학습률이 더 큰 모델이 있음. 노랑: 최대 학습률이 더 큼.",
    ),
}
