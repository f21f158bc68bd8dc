"""Verdicts of models without one of their parts: the English and the Korean sentence of every key."""

SENTENCES = {
    "why_head": (
        "Taking out {part} changes the sharpest curvature most: {factor} times.",
        "가장 가파른 곡률을 가장 크게 바꾸는 부분: {part} ({factor}배).",
    ),
    "why_head_quiet": (
        "No part changes the sharpest curvature by more than {limit} times.",
        "어느 부분도 가장 가파른 곡률을 {limit}배 넘게 바꾸지 않습니다.",
    ),
    "why_flatter": (
        "Step {step}: query blocks are {ratio} times flatter than value blocks; one step size fits neither.",
        "학습 {step} 단계: 쿼리 블록은 밸류 블록보다 {ratio}배 평평해 한 걸음 크기가 둘 다에 맞지 않습니다.",
    ),
    "why_sharper": (
        "Step {step}: value blocks are {ratio} times flatter than query blocks; one step size fits neither.",
        "학습 {step} 단계: 밸류 블록은 쿼리 블록보다 {ratio}배 평평해 한 걸음 크기가 둘 다에 맞지 않습니다.",
    ),
    "why_alike": (
        "Step {step}: query and value blocks differ by less than {limit} times; one step size can fit both.",
        "학습 {step} 단계: 쿼리 블록과 밸류 블록의 차이는 {limit}배 미만, 한 보폭이 둘 다에 맞을 수 있습니다.",
    ),
    "why_unsure": (
        "Step {step}: query and value blocks differ {ratio} times, within two standard errors; whether one step size"
        " fits both cannot be said.",
        "학습 {step} 단계: 쿼리 블록과 밸류 블록의 차이는 {ratio}배지만 표준 오차의 두 배 안이라 한 보폭이 둘 다에"
        " 맞는지 말할 수 없습니다.",
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
