"""Verdicts of models without one of their parts: the English and the Korean sentence of every key."""

SENTENCES = {
    "why_without": ("Without {part}", "{part} 없이:"),
    "why_one_matrix": ("With one matrix W_QK in place of W_Q W_K^T", "W_Q W_K^T 대신 행렬 W_QK 하나를 쓰면:"),
    "why_unmeasured": ("{label} nothing could be measured.", "{label} 잴 수 없었습니다."),
    "why_unchanged": (
        "no measure changes by {factor}x or {points} points beyond its error",
        "오차를 넘어 {factor}배 또는 {points}%p 이상 바뀐 값이 없습니다",
    ),
    "why_told": ("{label} {said}.", "{label} {said}."),
    "why_ratio": ("the value:query ratio", "밸류:쿼리 비"),
    "why_rises": ("{what} rises {factor} ({before} to {after})", "{what} {factor} 증가 ({before} -> {after})"),
    "why_falls": ("{what} falls {factor} ({before} to {after})", "{what} {factor} 감소 ({before} -> {after})"),
    "why_share_negative_curvature": (
        "the share of negative curvature goes from {before} % to {after} %",
        "음의 곡률의 비율 {before} % -> {after} %",
    ),
    "why_share_H_f_share": (
        "the share of H_f in the curvature goes from {before} % to {after} %",
        "곡률에서 H_f의 비율 {before} % -> {after} %",
    ),
    "why_head": (
        "Removing {part} changes the largest eigenvalue most: by a factor of {factor}.",
        "가장 큰 고유값을 가장 많이 바꾸는 요소: {part} ({factor}배).",
    ),
    "why_head_quiet": (
        "No component changes the largest eigenvalue by a factor of {limit} or more, beyond its error.",
        "어느 요소도 가장 큰 고유값을 오차를 넘어 {limit}배 이상 바꾸지 않습니다.",
    ),
    "why_flatter": (
        "Step {step}: query blocks are {ratio} times flatter than value blocks, so one step size fits neither: use"
        " an optimizer that scales each weight (Adam).",
        "학습 {step}단계: 쿼리 블록은 밸류 블록보다 {ratio}배 평평해 하나의 학습률이 둘 다에 맞지 않습니다. 가중치마다"
        " 스텝 크기를 조절하는 옵티마이저(Adam)를 쓰십시오.",
    ),
    "why_sharper": (
        "Step {step}: value blocks are {ratio} times flatter than query blocks, so one step size fits neither: use"
        " an optimizer that scales each weight (Adam).",
        "학습 {step}단계: 밸류 블록은 쿼리 블록보다 {ratio}배 평평해 하나의 학습률이 둘 다에 맞지 않습니다. 가중치마다"
        " 스텝 크기를 조절하는 옵티마이저(Adam)를 쓰십시오.",
    ),
    "why_alike": (
        "Step {step}: query and value blocks differ by a factor below {limit}, so one step size can fit both.",
        "학습 {step}단계: 쿼리 블록과 밸류 블록의 차이는 {limit}배 미만, 하나의 학습률이 둘 다에 맞을 수 있습니다.",
    ),
    "why_differ": (
        "Step {step}: query and value blocks differ by a factor of {ratio}.",
        "학습 {step}단계: 쿼리 블록과 밸류 블록의 차이는 {ratio}배입니다.",
    ),
    "adam_unknown": (
        "This model has no query and value blocks to compare.",
        "이 모델에는 비교할 쿼리 블록과 밸류 블록이 없습니다.",
    ),
    "warmup_course": (
        "The AdamW ceiling goes from {a} at step {first} to {b} at step {last}.",
        "AdamW의 학습률 상한: {first}단계 {a}, {last}단계 {b}.",
    ),
    "warmup_rises": (
        "It starts {factor} times lower, so warm up.",
        "처음에 {factor}배 낮으므로 워밍업을 쓰십시오.",
    ),
    "warmup_falls": (
        "It falls {factor} times, so decay the learning rate rather than warm up.",
        "{factor}배 낮아지므로 워밍업보다 학습률 감쇠를 쓰십시오.",
    ),
    "warmup_steady": (
        "It changes less than {limit} times: no reason for warm-up.",
        "변화가 {limit}배 미만이므로 워밍업할 까닭이 없습니다.",
    ),
    "warmup_open": ("It changes {factor} times.", "{factor}배 바뀝니다."),
    "warmup_unknown": (
        "The AdamW ceiling is not known at two steps, so nothing can be said about warm-up.",
        "두 단계의 AdamW 상한을 알 수 없어 워밍업에 대해 말할 수 없습니다.",
    ),
    "card_warmup_title": ("AdamW ceiling, last step over first", "AdamW 상한의 변화 (마지막 단계 / 첫 단계)"),
    "card_warmup_green": ("steady", "일정함"),
    "card_warmup_yellow": ("schedule it", "스케줄 필요"),
    "card_warmup_rule": (
        "Green within a factor {limit0} of 1, yellow beyond it.",
        "1에서 {limit0}배 안이면 초록, 벗어나면 노랑.",
    ),
    "card_why_title": ("Value blocks against query blocks", "밸류 블록과 쿼리 블록"),
    "card_why_green": ("alike", "비슷함"),
    "card_why_yellow": ("uneven", "고르지 않음"),
    "card_why_red": ("far apart", "크게 다름"),
    "card_why_rule": (
        "Ratio of norms, either way: green up to {limit0}, red above {limit1}.",
        "노름의 비, 어느 쪽이든: {limit0}까지 초록, {limit1} 초과 빨강.",
    ),
}
