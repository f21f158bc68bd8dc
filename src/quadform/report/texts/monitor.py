"""Sentences about monitored training runs, in both languages."""

EN = {
    "stage_monitor": "training, monitored",
    "record_monitor": "Training of {name}, monitored",
    "monitor_model": "model",
    "monitor_rule": "optimizer",
    "monitor_steps": "steps counted",
    "monitor_share": "share of the time spent measuring",
    "monitor_warning": "warning",
    "monitor_title": "Learning rate, ceiling and curvature during training",
    "monitor_reading": "Above: the learning rate (solid) and the largest stable one on the held batches (dashed). Where"
    " the solid line is above the dashed one, the sharpest direction grows. Below: the largest eigenvalue of H and of"
    " P⁻¹H, with P from the optimizer's state at that step.",
    "monitor_not": "The ceiling is that of the held batches, not of every training batch. A rate above it need not"
    " break a run: many runs move to a flatter region. Eigenvalues are tracked, so a new sharp direction may"
    " show late.",
    "monitor_step": "step",
    "monitor_lr": "learning rate",
    "monitor_ceiling": "ceiling",
    "monitor_lambda_max": "λ_max(H)",
    "monitor_lambda_P": "λ_max(P⁻¹H)",
    "monitor_attention_title": "Attention during training",
    "monitor_attention_reading": "One line a layer: the head with the largest logit, the smallest mean entropy (nats)"
    " and the largest |W_Q W_K^T|. Logits that keep rising with falling entropy mean that attention becomes one-hot.",
    "monitor_attention_not": "Logits and entropy are those of one held batch. A large logit alone does not break a"
    " run.",
    "monitor_logits": "largest logit",
    "monitor_entropy": "smallest entropy",
    "monitor_qk": "largest |W_Q W_K^T|",
    "monitor_layer": "layer",
    "monitor_what": "what",
    "monitor_value": "value",
    "monitor_head_largest_logit": "The largest logit went from {first} to {last}.",
    "monitor_head_smallest_entropy": "The smallest mean entropy of a head went from {first} to {last} nats.",
    "monitor_head_largest_qk": "The largest |W_Q W_K^T| went from {first} to {last}.",
}

KO = {
    "stage_monitor": "학습 관찰",
    "record_monitor": "{name}의 학습 관찰",
    "monitor_model": "모델",
    "monitor_rule": "옵티마이저",
    "monitor_steps": "센 단계 수",
    "monitor_share": "측정에 쓴 시간의 비율",
    "monitor_warning": "경고",
    "monitor_title": "학습 중의 학습률, 상한, 곡률",
    "monitor_reading": "위: 학습률(실선)과 따로 둔 배치에서 안정한 가장 큰 학습률(점선)입니다. 실선이 점선보다 위에"
    " 있으면 가장 가파른 방향이 커집니다. 아래: H와 P⁻¹H의 가장 큰 고유값이며, P는 그 단계의"
    " 옵티마이저 상태에서 옵니다.",
    "monitor_not": "상한은 따로 둔 배치의 것이지 모든 학습 배치의 것이 아닙니다. 학습률이 상한을 넘어도 학습이 꼭"
    " 깨지지는 않습니다. 더 평평한 곳으로 옮겨 가는 경우가 많습니다. 고유값은 이어서 따라가므로 새로 가팔라진 방향은"
    " 늦게 보일 수 있습니다.",
    "monitor_step": "단계",
    "monitor_lr": "학습률",
    "monitor_ceiling": "상한",
    "monitor_lambda_max": "H의 λ_max",
    "monitor_lambda_P": "P⁻¹H의 λ_max",
    "monitor_attention_title": "학습 중의 어텐션",
    "monitor_attention_reading": "선 하나가 층 하나입니다. 로짓이 가장 큰 헤드, 평균 엔트로피(nat)가 가장 작은 헤드,"
    " |W_Q W_K^T|가 가장 큰 헤드의 값입니다. 엔트로피가 줄면서 로짓이 계속 커지면 어텐션이 한 토큰에"
    " 쏠린다는 뜻입니다.",
    "monitor_attention_not": "로짓과 엔트로피는 따로 둔 배치 하나에서 잰 값입니다. 로짓이 크다는 것만으로 학습이"
    " 깨지지는 않습니다.",
    "monitor_logits": "가장 큰 로짓",
    "monitor_entropy": "가장 작은 엔트로피",
    "monitor_qk": "가장 큰 |W_Q W_K^T|",
    "monitor_layer": "층",
    "monitor_what": "항목",
    "monitor_value": "값",
    "monitor_head_largest_logit": "가장 큰 로짓은 {first}에서 {last}까지 바뀌었습니다.",
    "monitor_head_smallest_entropy": "헤드의 가장 작은 평균 엔트로피는 {first}에서 {last} nat까지 바뀌었습니다.",
    "monitor_head_largest_qk": "가장 큰 |W_Q W_K^T|는 {first}에서 {last}까지 바뀌었습니다.",
}
