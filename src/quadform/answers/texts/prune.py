"""Sentences about pruning: the English and the Korean one of every key."""

SENTENCES = {
    "prune_best": (
        "{method} loses least: with {sparsity} of the weights at zero the loss {loss} rises by {measured}; the"
        " quadratic model predicts {predicted}.",
        "{method} 방법의 손해가 가장 작습니다. 0인 가중치 {sparsity}, 이전 손실 {loss}, 손실 증가량 {measured},"
        " 이차 근사의 예측 {predicted}.",
    ),
    "prune_held": (
        "On batches held out it rises by {held}.",
        "남겨 둔 배치의 손실 증가량: {held}.",
    ),
}
