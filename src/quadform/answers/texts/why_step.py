"""Why one step of a training run went as it did: the English and the Korean sentence of every key."""

SENTENCES = {
    "why_step_ceiling": (
        "Step {step}: the learning rate was above the ceiling, the batch was usual. Lower the rate, or lengthen the"
        " warm-up.",
        "{step}단계: 배치는 보통이었지만 학습률이 상한보다 높았습니다. 학습률을 낮추거나 워밍업을 늘리십시오.",
    ),
    "why_step_data": (
        "Step {step}: the batch was unusual, the learning rate was below the ceiling. Look at the batch, or clip"
        " gradients.",
        "{step}단계: 학습률은 상한 아래였지만 배치가 이상했습니다. 배치를 확인하거나 기울기를 자르십시오.",
    ),
    "why_step_both": (
        "Step {step}: the learning rate was above the ceiling, and the batch was unusual.",
        "{step}단계: 학습률이 상한보다 높았고 배치도 이상했습니다.",
    ),
    "why_step_neither": (
        "Step {step}: neither the learning rate nor the batch stands out.",
        "{step}단계: 학습률도 배치도 눈에 띄지 않습니다.",
    ),
    "why_step_unknown": (
        "Step {step}: the learning rate was below the ceiling. The log does not tell about its batch: it needs the loss"
        " and the gradient norm of several steps.",
        "{step}단계: 학습률은 상한 아래였습니다. 기록으로는 배치에 대해 알 수 없습니다. 여러 단계의 손실과 기울기"
        " 길이가 기록에 있어야 합니다.",
    ),
    "why_step_sloped_between": (
        "From checkpoint {begun} to {until} the loss on the probe changed by {change}. To second order the slope along"
        " that update gives {slope}, curvature {curve}, most of it in {layer}. The slope is the larger part.",
        "체크포인트 {begun}에서 {until}까지 프로브의 손실은 {change}만큼 변했습니다. 2차 근사에서 갱신 방향의 기울기"
        " 몫은 {slope}, 곡률 몫은 {curve}입니다. 곡률은 {layer}에 가장 많습니다. 기울기 몫이 더 큽니다.",
    ),
    "why_step_curved_between": (
        "From checkpoint {begun} to {until} the loss on the probe changed by {change}. To second order the slope along"
        " that update gives {slope}, curvature {curve}, most of it in {layer}. Curvature is the larger part: the loss"
        " is not a line over so long a way.",
        "체크포인트 {begun}에서 {until}까지 프로브의 손실은 {change}만큼 변했습니다. 2차 근사에서 갱신 방향의 기울기"
        " 몫은 {slope}, 곡률 몫은 {curve}입니다. 곡률은 {layer}에 가장 많습니다. 곡률 몫이 더 크므로 이만큼 먼 거리에서"
        " 손실은 직선이 아닙니다.",
    ),
    "why_step_rate_between": (
        "At step {step} the learning rate {rate} was {ratio} times the ceiling, measured on the probe at the checkpoint"
        " of step {begun}.",
        "{step}단계의 학습률({rate})은 {begun}단계 체크포인트에서 프로브로 잰 상한의 {ratio}배였습니다.",
    ),
    "why_step_batch_between": (
        "The log has the loss {loss} there, {usual} around it (median); the gradient norm is {ratio} times that around"
        " it.",
        "기록에 남은 손실은 {loss}, 그 주변의 중앙값은 {usual}입니다. 기울기 길이는 주변의 {ratio}배입니다.",
    ),
    "why_step_sloped": (
        "On its own batch the loss changed by {change}: the slope along the update gives {slope}, curvature {curve},"
        " most of it in {layer}. The slope is the larger part.",
        "그 배치의 손실은 {change}만큼 변했습니다. 갱신 방향의 기울기 몫은 {slope}, 곡률 몫은 {curve}입니다."
        " 곡률은 {layer}에 가장 많습니다. 기울기 몫이 더 큽니다.",
    ),
    "why_step_curved": (
        "On its own batch the loss changed by {change}: the slope along the update gives {slope}, curvature {curve},"
        " most of it in {layer}. Curvature is the larger part: the step was too long.",
        "그 배치의 손실은 {change}만큼 변했습니다. 갱신 방향의 기울기 몫은 {slope}, 곡률 몫은 {curve}입니다."
        " 곡률은 {layer}에 가장 많습니다. 곡률 몫이 더 크므로 걸음이 너무 길었습니다.",
    ),
    "why_step_other": (
        "The log has the loss {logged} for this step: the run was not repeated exactly (dropout, smoothing, several"
        " processes), so this is about a step like it.",
        "기록에 남은 이 단계의 손실은 {logged}입니다. 학습이 똑같이 되풀이되지 않았으므로(드롭아웃, 스무딩, 여러"
        " 프로세스) 비슷한 단계에 대한 설명입니다.",
    ),
    "why_step_rate": (
        "At step {step} the learning rate {rate} was {ratio} times the ceiling on the batches after it.",
        "{step}단계의 학습률({rate})은 그 뒤 배치들에서 잰 상한의 {ratio}배였습니다.",
    ),
    "card_why_step_rate_title": ("Learning rate over its ceiling at the step", "그 단계에서 상한에 대한 학습률의 비"),
    "card_why_step_rate_green": ("below the ceiling", "상한 아래"),
    "card_why_step_rate_yellow": ("above the ceiling", "상한 위"),
    "card_why_step_rate_red": ("far above the ceiling", "상한보다 훨씬 위"),
    "card_why_step_rate_rule": (
        "Green up to {limit0}, red above {limit1}.",
        "{limit0}까지 초록, {limit1} 초과면 빨강.",
    ),
    "why_step_batch": (
        "Its batch has the loss {loss}, others {usual} (median); its gradient is {ratio} times as long as theirs.",
        "그 배치의 손실은 {loss}, 다른 배치의 중앙값은 {usual}입니다. 기울기의 길이는 다른 배치의 {ratio}배입니다.",
    ),
    "card_why_step_batch_title": ("Gradient of the batch over that of others", "다른 배치에 대한 기울기 길이의 비"),
    "card_why_step_batch_green": ("a usual batch", "보통 배치"),
    "card_why_step_batch_yellow": ("an unusual batch", "이상한 배치"),
    "card_why_step_batch_red": ("a very unusual batch", "매우 이상한 배치"),
    "card_why_step_batch_rule": (
        "Green up to {limit0}, red above {limit1}.",
        "{limit0}까지 초록, {limit1} 초과면 빨강.",
    ),
}
