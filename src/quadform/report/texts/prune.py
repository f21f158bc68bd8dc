"""Sentences about pruning, and about all that makes a model smaller, in both languages."""

EN = {
    "stage_prune": "what can be taken away",
    "record_prune": "Pruning {name}",
    "prune_title": "What pruning costs the loss",
    "compressed_axis": "rise of the loss",
    "compressed_predicted": "predicted",
    "compressed_measured": "measured",
    "compressed_unseen": "measured on batches held out",
    "prune_sparsity": "weights to remove",
    "prune_structure": "structure",
    "compressed_loss": "loss before",
    "compressed_row": "rise of the loss, {name}",
    "prune_part": "predicted rise by {name}",
    "prune_reading": "One group of bars for each method: how much the loss rises once the weights are gone. Predicted"
    " is g.d + d.Hd/2 with the exact Hessian, d the change of all weights; measured is the loss itself on the same"
    " batches, and on batches that no method has seen.",
    "prune_not": "Where prediction and measurement differ much, the weights moved beyond the range of the quadratic"
    " model: use the measured bar. The model was not retrained afterwards.",
    "prune_each_title": "What can be taken away",
    "prune_each_reading": "One line for each matrix without {share} of its weights, the smallest, and for each"
    " attention head taken out whole, the most sensitive on top: how much the loss rises when that alone is gone."
    " Predicted is g.d + d.Hd/2 with the exact Hessian, measured is the loss itself.",
    "prune_each_not": "The sum over lines is not what all of them cost together: terms between them are left out here,"
    " and no other weight makes up for what is gone.",
}

KO = {
    "stage_prune": "덜어 낼 수 있는 것",
    "record_prune": "{name}에서 덜어 낼 수 있는 가중치",
    "prune_title": "가지치기에 따른 손실 변화",
    "compressed_axis": "손실 증가량",
    "compressed_predicted": "예측",
    "compressed_measured": "측정",
    "compressed_unseen": "따로 둔 배치에서 측정",
    "prune_sparsity": "제거할 가중치",
    "prune_structure": "구조",
    "compressed_loss": "이전 손실",
    "compressed_row": "{name}의 손실 증가량",
    "prune_part": "{name}에서 예측한 증가량",
    "prune_reading": "막대 묶음 하나가 방법 하나이며, 가중치를 제거했을 때 손실이 얼마나 늘어나는지 보여 줍니다."
    " 예측은 기울기와 정확한 헤시안으로 구한 2차 변화량이고, 측정은 같은 배치와"
    " 어떤 방법도 보지 않은 배치에서 구한 손실입니다.",
    "prune_not": "예측과 측정이 크게 다르면 가중치가 이차 근사가 맞는 범위를 벗어난 것이므로 측정값을 따르십시오."
    " 이후에 다시 학습하지는 않았습니다.",
    "prune_each_title": "덜어 낼 수 있는 것",
    "prune_each_reading": "한 줄은 가장 작은 가중치부터 {share} 제거한 행렬 하나이거나 통째로 제거한 어텐션 헤드"
    " 하나이며, 가장 민감한 것이 맨 위에 있습니다. 그것만 제거했을 때의 손실 증가량입니다. 예측은 기울기와 정확한"
    " 헤시안으로 구한 2차 변화량, 측정은 손실 자체입니다.",
    "prune_each_not": "값을 모두 더해도 함께 제거한 값이 되지 않습니다. 서로 사이의 항이 빠져 있고, 다른 가중치로"
    " 보상하지 않았습니다.",
}
