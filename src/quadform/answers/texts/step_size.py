"""Verdicts of learning-rate ceilings: the English and the Korean sentence of every key."""

SENTENCES = {
    "rate_ceiling_range": (
        "The largest stable learning rate of {rule} is {ceiling} here (per batch: {low} to {high}).",
        "{rule}의 안정한 학습률 상한: {ceiling} (배치별로 {low}에서 {high}까지).",
    ),
    "rate_ceiling_one": (
        "The largest stable learning rate of {rule} is {ceiling} here.",
        "{rule}의 안정한 학습률 상한: {ceiling}.",
    ),
    "rate_none": (
        "No direction of this loss curves up, so curvature sets no ceiling.",
        "이 손실에는 위로 휘는 방향이 없어 곡률이 상한을 정하지 않습니다.",
    ),
    "rate_none_yet": (
        "No direction that curves up was found yet: allow more Hessian-vector products.",
        "위로 휘는 방향을 아직 찾지 못했습니다. 헤시안-벡터 곱을 더 허용하십시오.",
    ),
    "rate_yours_above": (
        "Your learning rate {rate} is above it ({share} times the ceiling): steps along the sharpest direction grow."
        " Lower it below {ceiling}.",
        "입력한 학습률 {rate}: 상한의 {share}배로 상한보다 큽니다. 가장 가파른 방향에서 걸음이 커지므로 {ceiling}"
        " 아래로 낮추십시오.",
    ),
    "rate_yours_below": (
        "Your learning rate {rate} is below it ({share} times the ceiling).",
        "입력한 학습률 {rate}: 상한의 {share}배로 상한보다 작습니다.",
    ),
    "rate_yours_near": (
        "Your learning rate {rate} is {share} times the ceiling, too close to tell.",
        "입력한 학습률 {rate}: 상한의 {share}배로, 오차 안에 있습니다.",
    ),
    "rate_now_above": (
        "The learning rate in force at this step, {rate}, is above it ({share} times the ceiling): steps along the"
        " sharpest direction grow. Lower it below {ceiling}.",
        "이 단계의 학습률 {rate}: 상한의 {share}배로 상한보다 큽니다. 가장 가파른 방향에서 걸음이 커지므로 {ceiling}"
        " 아래로 낮추십시오.",
    ),
    "rate_now_below": (
        "The learning rate in force at this step, {rate}, is below it ({share} times the ceiling).",
        "이 단계의 학습률 {rate}: 상한의 {share}배로 상한보다 작습니다.",
    ),
    "rate_now_near": (
        "The learning rate in force at this step, {rate}, is {share} times the ceiling, too close to tell.",
        "이 단계의 학습률 {rate}: 상한의 {share}배로, 오차 안에 있습니다.",
    ),
    "rate_peak": (
        "The schedule peaks at {peak}, at another step; the ceiling of that step was not measured.",
        "스케줄의 최대 학습률 {peak}: 다른 단계의 값이며, 그 단계의 상한은 재지 않았습니다.",
    ),
    "trial_shrinks": ("at {fraction}x the ceiling a perturbation decays", "상한의 {fraction}배에서는 줄어들고"),
    "trial_holds": ("at {fraction}x it keeps its size", "{fraction}배에서는 그대로이며"),
    "trial_grows": ("at {fraction}x it grows {factor}x per step", "{fraction}배에서는 한 걸음에 {factor}배로 커집니다"),
    "trial_agrees": (
        "Tested on a copy of the model, as predicted: {told}.",
        "복사본에서 작은 섭동으로 시험한 결과가 이론과 같습니다: {told}.",
    ),
    "trial_disagrees": (
        "The test on a copy contradicts the ceiling: at {fraction}x a step multiplies a perturbation by {measured},"
        " predicted is {predicted} ± {tolerance}. Do not trust this ceiling; measure in float64, with more"
        " Hessian-vector products or another seed.",
        "복사본 시험이 상한과 맞지 않습니다: 상한의 {fraction}배에서 한 걸음에 섭동이 {measured}배가 되는데, 예측은"
        " {predicted} ± {tolerance}배입니다. 이 상한을 믿지 마십시오. 배정밀도로, 헤시안-벡터 곱을 더 쓰거나 다른"
        " 시드로"
        " 다시 재십시오.",
    ),
    "card_rate_title": ("Learning-rate ceiling", "학습률 상한"),
    "card_rate_green": ("safe", "안전"),
    "card_rate_yellow": ("not tested", "시험 안 함"),
    "card_rate_red": ("beware", "주의"),
    "card_rate_rule": (
        "Green: the rate in force (or yours) is below the ceiling, and the test on a copy agrees. Yellow: not"
        " tested, or"
        " not converged. Red: the rate is above it, or the test disagrees.",
        "초록: 이 단계의 학습률(또는 입력한 값)이 상한보다 작고 복사본 시험이 이론과 같음. 노랑: 시험하지 않았거나"
        " 수렴하지 않음. 빨강: 학습률이 더 크거나 시험이 이론과 다름.",
    ),
    "card_trial_title": ("Test on a copy, growth per step", "복사본 시험, 한 걸음의 배율"),
    "card_trial_green": ("as predicted", "예측대로"),
    "card_trial_red": ("contradicts", "맞지 않음"),
    "card_trial_rule": (
        "Green: 0.5x the ceiling decays, 1x holds, 2x grows as predicted. Red: one of them does not.",
        "초록: 상한의 0.5배에서 줄고 1배에서 그대로이며 2배에서 예측만큼 커짐. 빨강: 하나라도 다름.",
    ),
}
