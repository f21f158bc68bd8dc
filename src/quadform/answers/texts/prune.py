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
    "quantize_each": (
        "Alone, {name} costs most: {most}.",
        "하나씩 양자화할 때 손실 증가량이 가장 큰 행렬: {name} ({most}).",
    ),
}
