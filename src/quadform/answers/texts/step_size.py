"""Verdicts of learning-rate ceilings: the English and the Korean sentence of every key."""

SENTENCES = {
    "rate_head": (
        "The ceiling of {rule} is {ceiling}; on single probe batches it runs from {low} to {high}.",
        "{rule}의 상한: {ceiling}. 탐침 배치 하나씩으로는 {low}부터 {high}까지입니다.",
    ),
    "rate_head_one": ("The ceiling of {rule} is {ceiling}.", "{rule}의 상한: {ceiling}."),
    "rate_head_none": (
        "No direction of this loss curves up, so curvature sets no ceiling.",
        "이 손실에는 위로 휘는 방향이 없어 곡률이 상한을 정하지 않습니다.",
    ),
    "rate_head_above": ("Your learning rate {rate} is above it.", "입력한 학습률 {rate}: 상한보다 큽니다."),
    "rate_head_below": ("Your learning rate {rate} is {share} of it.", "입력한 학습률 {rate}: 상한의 {share}배."),
    "rate_now_above": (
        "The learning rate in force at this step, {rate}, is above it ({share} of it).",
        "이 단계에서 쓰이는 학습률 {rate}: 상한보다 큽니다 (상한의 {share}배).",
    ),
    "rate_now_below": (
        "The learning rate in force at this step, {rate}, is {share} of it.",
        "이 단계에서 쓰이는 학습률 {rate}: 상한의 {share}배.",
    ),
    "rate_head_peak": (
        "The peak rate of the schedule, {peak}, belongs to another step, whose ceiling was not measured.",
        "스케줄의 최대 학습률 {peak}: 다른 단계의 값이며, 그 단계의 상한은 재지 않았습니다.",
    ),
    "card_rate_title": ("Learning-rate ceiling", "학습률 상한"),
    "card_rate_green": ("firm", "확실"),
    "card_rate_yellow": ("not tried", "시험 안 함"),
    "card_rate_red": ("beware", "주의"),
    "card_rate_rule": (
        "Green: found to its tolerance, tried on a copy as theory says, the rate in force (or yours) below it."
        " Yellow: not tried. Red: that rate above it, or the trial disagrees.",
        "초록: 허용 오차 안에서 찾았고 복사본 시험이 이론과 같으며 이 단계의 학습률(또는 입력한 값)이 그 아래."
        " 노랑: 시험하지 않음. 빨강: 그 학습률이 더 크거나 시험이 이론과 다름.",
    ),
}
