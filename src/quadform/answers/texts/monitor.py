"""Verdicts of monitored training runs: the English and the Korean sentence of every key."""

SENTENCES = {
    "monitor_summary": (
        "{count} measurements in {steps} steps, {share} of the time. λ_max went from {first} to {last}.",
        "{steps}단계 동안 {count}번 쟀고, 시간의 {share}만큼 썼습니다. λ_max는 {first}에서 {last}까지 바뀌었습니다.",
    ),
    "card_live_rate_title": ("Learning rate over its ceiling, at its largest", "상한에 대한 학습률의 비, 가장 클 때"),
    "card_live_rate": (
        "At step {step} the learning rate was {ratio} times the ceiling on the held batches.",
        "{step}단계에서 학습률은 따로 둔 배치에서 잰 상한의 {ratio}배였습니다.",
    ),
    "card_live_rate_green": ("below the ceiling", "상한 아래"),
    "card_live_rate_yellow": ("above the ceiling", "상한 위"),
    "card_live_rate_red": ("far above the ceiling", "상한보다 훨씬 위"),
    "card_live_rate_rule": ("Green up to {limit0}, red above {limit1}.", "{limit0}까지 초록, {limit1} 초과면 빨강."),
}
