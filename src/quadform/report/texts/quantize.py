"""Sentences about quantization, in both languages."""

EN = {
    "stage_quantize": "quantization",
    "record_quantize": "Quantization of {name}",
    "quantize_title": "The loss with fewer bits",
    "quantize_group": "weights that share a scale",
    "quantize_budget": "budget, bits a weight",
    "quantize_bits": "stored bits a weight, scales and zero points included",
    "quantize_reading": "One group of bars for each method: how much the loss rises once the weights are rounded."
    " Predicted is g.d + d.Hd/2 with the exact Hessian, d the change of all weights; measured is the loss itself on the"
    " same batches, and on batches that no method has seen.",
    "quantize_not": "Where prediction and measurement differ much, the weights moved beyond the range of the quadratic"
    " model: use the measured bar. The model was not retrained afterwards. Activations are not rounded.",
    "quantize_each_title": "Each matrix rounded alone",
    "quantize_each_reading": "One line for each matrix, its bits in brackets, the most sensitive on top: how much the"
    " loss rises when it alone is rounded, by the best method. Predicted is g.d + d.Hd/2, measured is the loss itself.",
    "quantize_each_not": "The sum over matrices is not what all of them cost together: terms between matrices are left"
    " out here.",
}

KO = {
    "stage_quantize": "양자화",
    "record_quantize": "{name}에 필요한 비트 수",
    "quantize_title": "비트 수를 줄일 때의 손실 변화",
    "quantize_group": "스케일을 공유하는 가중치 수",
    "quantize_budget": "가중치당 비트 예산",
    "quantize_bits": "스케일과 영점을 포함한 가중치당 저장 비트",
    "quantize_reading": "막대 묶음 하나가 방법 하나이며, 가중치를 반올림했을 때 손실이 얼마나 늘어나는지 보여 줍니다."
    " 예측은 기울기와 정확한 헤시안으로 구한 2차 변화량이고, 측정은 같은 배치와"
    " 어떤 방법도 보지 않은 배치에서 구한 손실입니다.",
    "quantize_not": "예측과 측정이 크게 다르면 가중치가 이차 근사가 맞는 범위를 벗어난 것이므로 측정값을 따르십시오."
    " 이후에 다시 학습하지는 않았으며, 활성값은 반올림하지 않았습니다.",
    "quantize_each_title": "행렬을 하나씩 양자화한 결과",
    "quantize_each_reading": "한 줄이 행렬 하나이고 괄호 안은 비트 수이며, 가장 민감한 행렬이 맨 위에 있습니다."
    " 가장 좋은 방법으로 그 행렬만 반올림했을 때의 손실 증가량입니다. 예측은 2차 변화량, 측정은 손실 자체입니다.",
    "quantize_each_not": "행렬별 값을 더해도 모두 함께 양자화한 값이 되지 않습니다. 행렬 사이의 항이 빠져 있습니다.",
}
