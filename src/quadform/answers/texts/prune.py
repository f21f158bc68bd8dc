"""Sentences about pruning and quantization: the English and the Korean one of every key."""

SENTENCES = {
    "prune_best": (
        "{method} is best: with {sparsity} of the weights set to zero the loss {loss} changes by {measured}; the"
        " quadratic model predicts {predicted}.",
        "{method} 방법이 가장 좋습니다. 0인 가중치 {sparsity}, 이전 손실 {loss}, 손실 변화량 {measured},"
        " 이차 근사의 예측 {predicted}.",
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
        "Taken alone, {little} of {all} matrices (without {size} of their weights) and whole heads raise the loss"
        " {loss} by at most {share}. {low} costs least ({least}), {high} most ({most}): take from the first, spare"
        " the second.",
        "행렬 하나에서 가중치 {size}, 또는 헤드 하나를 통째로 제거했을 때 손실 {loss}의 증가가 {share} 이하인 것:"
        " {all}개 중 {little}개. 손실 증가량이 가장 작은 것은 {low} ({least}), 가장 큰 것은 {high} ({most})입니다."
        " 앞의 것에서 먼저 제거하고 뒤의 것은 남겨 두십시오.",
    ),
    "quantize_each": (
        "Rounded alone to {size} bits, {little} of {all} matrices raise the loss {loss} by at most {share}. {low} costs"
        " least ({least}), {high} most ({most}): the second needs more bits first.",
        "행렬 하나만 {size}비트로 양자화했을 때 손실 {loss}의 증가가 {share} 이하인 것: {all}개 중 {little}개. 손실"
        " 증가량이 가장 작은 것은 {low} ({least}), 가장 큰 것은 {high} ({most})입니다. 비트는 뒤의 것에 먼저"
        " 늘리십시오.",
    ),
    "compressed_ranks": (
        "The order that gradient and Hessian predict agrees with the measured one to a rank correlation of {ranks}"
        " (1: the same order).",
        "기울기와 헤시안으로 예측한 순서와 측정한 순서의 순위 상관: {ranks} (1이면 같은 순서).",
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
    "card_ranks_title": ("What can be taken away", "덜어 낼 수 있는 것"),
    "card_ranks_green": ("the Hessian tells", "헤시안으로 알 수 있음"),
    "card_ranks_yellow": ("only measuring tells", "측정해야 알 수 있음"),
    "card_ranks_rule": (
        "rank correlation of predicted and measured rises, one matrix or head at a time: green from {limit0} on",
        "행렬이나 헤드 하나씩의 예측 증가량과 측정 증가량의 순위 상관: {limit0} 이상이면 초록",
    ),
}
