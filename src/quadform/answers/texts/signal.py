"""Verdicts of signals through depth: the English and the Korean sentence of every key."""

SENTENCES = {
    "signal_head_alive": (
        "The signal survives: after the last block of {label} the mean token cosine is {cosine} (limit {limit}).",
        "신호가 살아 있습니다. {label}: 마지막 블록 뒤의 평균 토큰 코사인 {cosine} (한계 {limit}).",
    ),
    "signal_head_alive_all": (
        "The signal survives: after the last block of {label} the mean token cosine is {cosine} (limit {limit}), and"
        " no other curve ends higher.",
        "신호가 살아 있습니다. {label}: 마지막 블록 뒤의 평균 토큰 코사인 {cosine} (한계 {limit}), 다른 곡선은 모두"
        " 이보다 낮거나 같습니다.",
    ),
    "signal_head_near": (
        "Tokens are nearly alike after the last block of {label}: mean cosine {cosine}, above {limit}.",
        "마지막 블록 뒤의 토큰이 거의 같아졌습니다. {label}: 평균 코사인 {cosine}, 한계 {limit} 초과.",
    ),
    "signal_head_collapsed": (
        "Rank collapse: after block {layer} of {label} all tokens point one way (mean cosine {cosine} after the last"
        " block).",
        "랭크 붕괴: {label}, 블록 {layer} 뒤에서 모든 토큰이 한 방향을 향합니다 (마지막 블록 뒤의 평균 코사인"
        " {cosine}).",
    ),
    "signal_head_close": (
        "After the last block of {label} the mean token cosine is {cosine} (limit {limit}).",
        "{label}: 마지막 블록 뒤의 평균 토큰 코사인 {cosine} (한계 {limit}).",
    ),
    "card_signal_title": ("Signal after the last block", "마지막 블록 뒤의 신호"),
    "card_signal_green": ("alive", "살아 있음"),
    "card_signal_yellow": ("fading", "약해짐"),
    "card_signal_red": ("collapsed", "붕괴"),
    "card_signal_rule": (
        "Mean token cosine: green up to {limit0}, red above {limit1}.",
        "평균 토큰 코사인: {limit0}까지 초록, {limit1} 초과 빨강.",
    ),
    "card_growth_title": ("Norm over the input", "입력에 대한 노름"),
    "card_growth": (
        "The tokens after the last block of {label} are {times} times as large as at its input.",
        "{label}: 마지막 블록 뒤 토큰의 크기는 입력의 {times}배입니다.",
    ),
    "card_growth_green": ("steady", "고름"),
    "card_growth_yellow": ("drifting", "벗어남"),
    "card_growth_red": ("exploding or vanishing", "폭발 또는 소실"),
    "card_growth_rule": (
        "Green within a factor {limit0} of 1, red beyond {limit1}.",
        "1의 {limit0}배 안이면 초록, {limit1}배를 넘으면 빨강.",
    ),
    "card_gradient_title": ("Gradient at the input over the last layer", "입력의 기울기, 마지막 층 대비"),
    "card_gradient": (
        "The gradient at the input of {label} is {times} times as large as after its last block.",
        "{label}: 입력에서의 기울기 크기는 마지막 블록 뒤의 {times}배입니다.",
    ),
    "card_gradient_green": ("steady", "고름"),
    "card_gradient_yellow": ("drifting", "벗어남"),
    "card_gradient_red": ("exploding or vanishing", "폭발 또는 소실"),
    "card_gradient_rule": (
        "Green within a factor {limit0} of 1, red beyond {limit1}.",
        "1의 {limit0}배 안이면 초록, {limit1}배를 넘으면 빨강.",
    ),
    "card_prediction_title": ("Prediction against measurement", "예측과 측정"),
    "card_prediction_green": ("agree", "일치"),
    "prediction_green": (
        "{label}: prediction and measurement agree within 0.02 or 5 % (largest difference in cosine {gap}).",
        "{label}: 예측과 측정이 0.02 또는 5 % 안에서 같습니다 (코사인의 가장 큰 차이 {gap}).",
    ),
    "prediction_undecided": (
        "{label}: prediction and measurement differ by up to {gap} in cosine.",
        "{label}: 예측과 측정의 코사인 차이가 {gap}까지 납니다.",
    ),
    "prediction_red": (
        "{label}: prediction and measurement differ by {gap} in cosine, more than 0.02 and 5 %: do not rely on the"
        " prediction for this design.",
        "{label}: 예측과 측정의 코사인 차이 {gap}: 0.02와 5 %를 넘습니다. 이 설계에서는 예측에 기대지 마십시오.",
    ),
    "card_prediction_red": ("disagree", "불일치"),
    "card_prediction_rule": (
        "Largest difference in cosine over the layers; green within 0.02 or 5 %, red beyond it by more than two"
        " standard errors.",
        "층 전체에서 코사인의 가장 큰 차이. 0.02 또는 5 % 안이면 초록, 표준 오차의 두 배 넘게 벗어나면 빨강.",
    ),
}
