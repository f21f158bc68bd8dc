"""Sentences about landscapes: the English and the Korean one of every key."""

SENTENCES = {
    "landscape_lower": (
        "The loss here is {here}; the lowest of the points is {low}: the loss can still fall along these directions.",
        "현재 손실은 {here}, 잰 점 가운데 가장 낮은 손실은 {low}입니다. 이 방향으로 더 내려갈 수 있습니다.",
    ),
    "landscape_lowest": (
        "The loss here, {here}, is the lowest of the points to 0.1 %.",
        "현재 손실 {here}, 잰 점 가운데 0.1 % 이내로 가장 낮습니다.",
    ),
    "landscape_model": (
        "The quadratic model is right to {within} at {share} of the points; statements from the Hessian hold there.",
        "이차 근사는 전체 점의 {share}에서 {within} 이내로 맞습니다. 헤시안에서 나온 값은 그 안에서 쓸 수 있습니다.",
    ),
}
