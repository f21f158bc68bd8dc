"""Sentences about flatness: the English and the Korean one of every key."""

SENTENCES = {
    "card_flat_title": ("Sharpness from scale alone", "스케일 때문에 생긴 날카로움"),
    "card_flat_green": ("little", "적음"),
    "card_flat_yellow": ("some", "있음"),
    "card_flat_red": ("most of it", "대부분"),
    "card_flat_rule": (
        "λ_max over its least value among models with the same outputs: green up to {limit0}, red above {limit1}",
        "같은 함수를 내는 모델 가운데 최소 λ_max에 대한 비: {limit0} 이하면 초록, {limit1} 초과면 빨강",
    ),
    "flat_balanced": (
        "λ_max is {here}, {ratio} times the least found among models that compute the same ({least}): little of its"
        " sharpness comes from the scale of the weights. Compare models by the least values.",
        "λ_max {here}: 같은 함수를 내는 모델에서 찾은 최솟값 {least}의 {ratio}배입니다. 가중치의 스케일에서 온 부분은"
        " 적습니다. 모델끼리는 최솟값으로 비교하십시오.",
    ),
    "flat_scaled": (
        "λ_max is {here}, {ratio} times the least found among models that compute the same ({least}): much of it is the"
        " scale of the weights, not the function. Do not compare λ_max between models; compare the least values.",
        "λ_max {here}: 같은 함수를 내는 모델에서 찾은 최솟값 {least}의 {ratio}배입니다. 상당 부분은 함수가 아니라"
        " 가중치의 스케일에서 옵니다. 모델끼리는 λ_max 대신 최솟값으로 비교하십시오.",
    ),
    "flat_without": (
        "No pair of weights was found that can be rescaled without changing the model. Pairs are known in quadform's"
        " own blocks and in Linear, ReLU, Linear of `nn.Sequential`; where a model is written otherwise, compare these"
        " values only between models of one scale.",
        "모델을 바꾸지 않고 스케일을 옮길 수 있는 가중치 쌍을 찾지 못했습니다. 이 패키지의 블록과 `nn.Sequential`의"
        " `Linear`, `ReLU`, `Linear`에서만 찾습니다. 다르게 작성된 모델의 값은 스케일이 같은 모델끼리만 비교하십시오.",
    ),
}
