"""Sentences about pruning and quantization: the English and the Korean one of every key."""

SENTENCES = {
    "prune_best": (
        "{method} is best: with {sparsity} of the weights set to zero the loss {loss} changes by {measured}; the"
        " quadratic model predicts {predicted}.",
        "{method} 방법이 가장 좋습니다. 0인 가중치 {sparsity}, 이전 손실 {loss}, 손실 변화량 {measured},"
        " 이차 근사의 예측 {predicted}.",
    ),
    "compressed_far": (
        "So large a change is beyond the quadratic model: rely on the measured number.",
        "변화가 커서 이차 근사가 맞지 않으니 측정값을 보십시오.",
    ),
    "prune_less": (
        "To lose less, remove fewer weights, calibrate on more data, or train the pruned model further.",
        "손실을 덜 올리려면 더 적게 제거하거나, 더 많은 데이터로 보정하거나, 가지치기한 모델을 더 학습하십시오.",
    ),
    "quantize_less": (
        "To lose less, give more bits or smaller groups, or calibrate on more data.",
        "손실을 덜 올리려면 비트 수를 늘리거나, 그룹을 줄이거나, 더 많은 데이터로 보정하십시오.",
    ),
    "compressed_held": (
        "On held-out batches it changes by {held}.",
        "따로 둔 배치의 손실 변화량: {held}.",
    ),
    "compressed_score": (
        "Score ({name}): {before} before, {after} after.",
        "점수({name}): 이전 {before}, 이후 {after}.",
    ),
    "quantize_best": (
        "{method} is best: with {bits} bits per weight the loss {loss} changes by {measured}; the quadratic model"
        " predicts {predicted}.",
        "{method} 방법이 가장 좋습니다. 가중치당 {bits}비트, 이전 손실 {loss}, 손실 변화량 {measured},"
        " 이차 근사의 예측 {predicted}.",
    ),
    "prune_each": (
        "{little} of {all} matrices (without {size} of their weights) and heads cost at most {share} of the loss each.",
        "하나씩 제거할 때 손실 증가가 {share} 이하인 행렬(가중치 {size} 제거)과 헤드: {all}개 중 {little}개.",
    ),
    "quantize_each": (
        "{little} of {all} matrices, rounded alone to {size} bits, cost at most {share} of the loss each.",
        "하나씩 {size}비트로 양자화할 때 손실 증가가 {share} 이하인 행렬: {all}개 중 {little}개.",
    ),
    "compressed_ends": (
        "Changed alone, {low} raises the loss least ({least}), {high} most ({most}).",
        "하나만 바꿀 때 손실 증가가 가장 작은 것: {low} ({least}), 가장 큰 것: {high} ({most}).",
    ),
    "compressed_ranks": (
        "The Hessian predicts this order with a rank correlation of {ranks}.",
        "헤시안으로 예측한 순서와의 순위 상관: {ranks}.",
    ),
    "card_prune_title": ("What pruning costs", "가지치기의 대가"),
    "card_prune_green": ("little", "작음"),
    "card_prune_yellow": ("something", "있음"),
    "card_prune_rule": (
        "rise of the loss over the loss, held out where that was measured: green up to {limit0}",
        "손실 대비 손실 증가(측정했으면 남겨 둔 배치 기준): {limit0} 이하면 초록",
    ),
    "card_quantize_title": ("What few bits cost", "비트 수를 줄인 대가"),
    "card_quantize_green": ("little", "작음"),
    "card_quantize_yellow": ("something", "있음"),
    "card_quantize_rule": (
        "rise of the loss over the loss, held out where that was measured: green up to {limit0}",
        "손실 대비 손실 증가(측정했으면 남겨 둔 배치 기준): {limit0} 이하면 초록",
    ),
    "card_ranks_title": ("Order of sensitivity", "민감도 순서"),
    "card_ranks_green": ("the Hessian tells", "헤시안으로 알 수 있음"),
    "card_ranks_yellow": ("only measuring tells", "측정해야 알 수 있음"),
    "card_ranks_rule": (
        "rank correlation of predicted and measured: green from {limit0} on",
        "예측과 측정의 순위 상관: {limit0} 이상이면 초록",
    ),
}
