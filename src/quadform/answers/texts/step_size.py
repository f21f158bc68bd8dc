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
        "Lower the learning rate below {ceiling}: yours, {rate}, is {share} times the ceiling, and steps along the"
        " sharpest direction grow.",
        "학습률을 {ceiling} 아래로 낮추십시오. 입력한 학습률 {rate}: 상한의 {share}배이며, 가장 가파른 방향에서 걸음이"
        " 커집니다.",
    ),
    "rate_yours_rose": (
        "Lower the learning rate below {ceiling}: yours, {rate}, is {share} times the ceiling, and on copies the loss"
        " rises within {steps} steps.",
        "학습률을 {ceiling} 아래로 낮추십시오. 입력한 학습률 {rate}: 상한의 {share}배이며, 복사본에서 {steps}단계 안에"
        " 손실이 커집니다.",
    ),
    "rate_yours_below": (
        "Keep the learning rate {rate}: it is {share} times the ceiling.",
        "학습률 {rate}: 상한의 {share}배이므로 그대로 두어도 됩니다.",
    ),
    "rate_yours_beyond": (
        "Watch the loss at learning rate {rate}: it is {share} times the ceiling, but above {reach} the ceiling does"
        " not apply, because its quadratic model no longer holds. If the loss rises, lower the rate below {reach}.",
        "학습률 {rate}에서는 손실을 직접 살피십시오. 상한의 {share}배이지만 {reach}보다 큰 학습률에는 상한을 쓸 수"
        " 없습니다(이차 근사가 맞지 않음). 손실이 오르면 학습률을 {reach} 아래로 낮추십시오.",
    ),
    "rate_yours_near": (
        "Do not raise the learning rate: yours, {rate}, is {share} times the ceiling, too close to tell.",
        "학습률을 더 올리지 마십시오. 입력한 학습률 {rate}: 상한의 {share}배로, 상한과 오차 안에서 같습니다.",
    ),
    "rate_now_above": (
        "Lower the learning rate below {ceiling}: {rate}, in force at this step, is {share} times the ceiling, and"
        " steps along the sharpest direction grow.",
        "학습률을 {ceiling} 아래로 낮추십시오. 이 단계의 학습률 {rate}: 상한의 {share}배이며, 가장 가파른 방향에서"
        " 걸음이 커집니다.",
    ),
    "rate_now_rose": (
        "Lower the learning rate below {ceiling}: {rate}, in force at this step, is {share} times the ceiling, and on"
        " copies the loss rises within {steps} steps.",
        "학습률을 {ceiling} 아래로 낮추십시오. 이 단계의 학습률 {rate}: 상한의 {share}배이며, 복사본에서 {steps}단계"
        " 안에 손실이 커집니다.",
    ),
    "rate_now_below": (
        "No change needed: {rate}, the learning rate in force at this step, is {share} times the ceiling.",
        "바꿀 필요가 없습니다. 이 단계의 학습률 {rate}: 상한의 {share}배입니다.",
    ),
    "rate_now_beyond": (
        "Watch the loss: {rate}, the learning rate in force at this step, is {share} times the ceiling, but above"
        " {reach} the ceiling does not apply, because its quadratic model no longer holds. If the loss rises, lower"
        " the rate below {reach}.",
        "손실을 직접 살피십시오. 이 단계의 학습률 {rate}: 상한의 {share}배이지만 {reach}보다 큰 학습률에는 상한을 쓸 수"
        " 없습니다(이차 근사가 맞지 않음). 손실이 오르면 학습률을 {reach} 아래로 낮추십시오.",
    ),
    "rate_now_near": (
        "Do not raise the learning rate: {rate}, in force at this step, is {share} times the ceiling, too close to"
        " tell.",
        "학습률을 더 올리지 마십시오. 이 단계의 학습률 {rate}: 상한의 {share}배로, 상한과 오차 안에서 같습니다.",
    ),
    "rate_peak": (
        "The schedule peaks at {peak}, at another step; the ceiling of that step was not measured.",
        "스케줄의 최대 학습률 {peak}: 다른 단계의 값이며, 그 단계의 상한은 재지 않았습니다.",
    ),
    "rate_short": (
        "Watch the loss above {reach}: from there on the ceiling does not apply, because its quadratic model no longer"
        " holds.",
        "{reach}보다 큰 학습률에서는 이차 근사가 맞지 않아 상한을 쓸 수 없으므로 손실을 직접 살피십시오.",
    ),
    "rate_short_below": (
        "Before you raise it above {reach}, watch the loss in a short trial: from there on the ceiling does not apply,"
        " because its quadratic model no longer holds.",
        "{reach}보다 크게 올리려면 먼저 짧게 돌려 손실을 살피십시오. 그보다 큰 학습률에서는 이차 근사가 맞지 않아"
        " 상한을 쓸 수 없습니다.",
    ),
    "rate_short_above": (
        "If the loss still rises there, go below {reach}: from there on the ceiling does not apply, because its"
        " quadratic model no longer holds.",
        "그래도 손실이 오르면 {reach} 아래로 낮추십시오. 그보다 큰 학습률에서는 이차 근사가 맞지 않아 상한을 쓸 수"
        " 없습니다.",
    ),
    "course_run_below": (
        "Along the run, at {count} checkpoints, the learning rate was below the ceiling of its own step: at most"
        " {share} times it, at step {step}.",
        "학습 과정의 체크포인트 {count}개에서 학습률은 그 단계의 상한보다 작았습니다. 가장 가까웠던 곳은 {step}단계로,"
        " 상한의 {share}배입니다.",
    ),
    "course_run_edge": (
        "Along the run the learning rate came to {share} times the ceiling, at step {step}: the edge of stability."
        " There is no room for a peak much above {peak}.",
        "학습 중 학습률이 {step}단계에서 상한의 {share}배에 이르렀습니다(안정성의 경계). 최대 학습률을 {peak}보다 크게"
        " 올릴 여유가 없습니다.",
    ),
    "course_run_above": (
        "Along the run the learning rate was {share} times the ceiling, at step {step}: too high. Lower the peak from"
        " {peak} below {room}, or clip the gradient.",
        "학습 중 학습률이 {step}단계에서 상한의 {share}배로 너무 컸습니다. 최대 학습률을 {peak}에서 {room} 아래로"
        " 낮추거나 기울기를 자르십시오.",
    ),
    "course_short_below": (
        "Along a short run of {short} steps the rate of the schedule was at most {share} times the ceiling, at step"
        " {step}: the peak {peak} is safe over these steps.",
        "{short}단계의 짧은 학습에서 스케줄의 학습률은 {step}단계에서 상한의 {share}배가 최대였습니다. 여기까지는 최대"
        " 학습률 {peak}에 문제가 없습니다.",
    ),
    "course_short_edge": (
        "Along a short run of {short} steps the rate of the schedule came to {share} times the ceiling, at step {step}:"
        " the peak {peak} leaves no room.",
        "{short}단계의 짧은 학습에서 스케줄의 학습률이 {step}단계에서 상한의 {share}배에 이르렀습니다. 최대 학습률"
        " {peak}에는 여유가 없습니다.",
    ),
    "course_short_above": (
        "Along a short run of {short} steps the rate of the schedule was {share} times the ceiling, at step {step}: the"
        " peak {peak} is too high.",
        "{short}단계의 짧은 학습에서 스케줄의 학습률이 {step}단계에서 상한의 {share}배였습니다. 최대 학습률 {peak}:"
        " 너무 큽니다.",
    ),
    "course_warm_longer": (
        "Warm up for longer than {warmup} steps, or lower the peak below {room}.",
        "{warmup}단계보다 길게 워밍업하거나 최대 학습률을 {room} 아래로 낮추십시오.",
    ),
    "course_lower": ("Lower the peak below {room}.", "최대 학습률을 {room} 아래로 낮추십시오."),
    "course_warm_free": (
        "Curvature does not require warm-up: the peak was below the ceiling at each of these steps.",
        "이 단계들 모두에서 최대 학습률이 상한보다 작으므로 곡률만 보면 워밍업이 필요 없습니다.",
    ),
    "course_warm_needed": (
        "Keep the warm-up of {warmup} steps: at step {at} the ceiling, {ceiling}, was below the peak.",
        "워밍업 {warmup}단계를 그대로 두십시오. {at}단계의 상한({ceiling})은 최대 학습률보다 작았습니다.",
    ),
    "card_course_title": ("Learning rate along the run", "학습 과정의 학습률"),
    "card_course_green": ("below the ceiling", "상한 아래"),
    "card_course_yellow": ("at the edge", "경계"),
    "card_course_red": ("too high", "너무 큼"),
    "card_course_rule": (
        "largest rate over the ceiling of the same step: green up to {limit0}, red above {limit1}",
        "같은 단계의 상한에 대한 학습률의 최대 비: {limit0} 이하면 초록, {limit1} 초과면 빨강",
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
        " {predicted} ± {tolerance}배입니다. 이 상한을 믿지 마십시오. float64로, 헤시안-벡터 곱을 더 쓰거나 다른"
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
