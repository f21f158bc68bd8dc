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
    "way_line_free": (
        "On the straight line to {other} the loss stays at or below {line} at all {count} points (here {here}, there"
        " {there}): no barrier. Averaging the two is safe on these batches: their mean has loss {middle}.",
        "{other}까지 직선 위 {count}개 점에서 손실은 {line} 이하입니다(여기 {here}, 저기 {there}). 장벽이 없습니다."
        " 두 가중치를 평균한 모델의 손실은 {middle}, 이 배치에서는 평균을 써도 됩니다.",
    ),
    "way_line_worse": (
        "On the straight line to {other} the loss stays at or below {line} at all {count} points (here {here}, there"
        " {there}): no barrier. But do not average the two: the better one has loss {better}, their mean {middle}.",
        "{other}까지 직선 위 {count}개 점에서 손실은 {line} 이하입니다(여기 {here}, 저기 {there}). 장벽은 없지만"
        " 평균하지 마십시오. 둘 중 나은 쪽의 손실은 {better}, 평균한 모델의 손실은 {middle}입니다.",
    ),
    "way_line_barrier": (
        "On the straight line to {other} the loss rises to {line} (here {here}, there {there}): a barrier. Do not"
        " average these weights; their mean has loss {middle}.",
        "{other}까지 직선 위에서 손실은 {line}까지 오릅니다(여기 {here}, 저기 {there}). 장벽이 있으므로 두 가중치를"
        " 평균하지 마십시오. 평균의 손실은 {middle}입니다.",
    ),
    "way_curve_free": (
        "On a Bezier curve, its bend trained for {steps} steps on these batches, the loss stays at or below {curve}: a"
        " path without a barrier connects the two.",
        "이 배치에서 {steps}걸음 학습한 베지에 곡선 위에서 손실은 {curve} 이하입니다. 두 모델은 장벽 없는 길로"
        " 이어집니다.",
    ),
    "way_curve_lower": (
        "On a Bezier curve, its bend trained for {steps} steps on these batches, it rises to {curve}: a lower barrier."
        " More steps may lower it further.",
        "이 배치에서 {steps}걸음 학습한 베지에 곡선 위에서는 {curve}까지 오릅니다. 장벽이 낮아졌으며, 걸음을 늘리면 더"
        " 낮아질 수 있습니다.",
    ),
    "way_curve_no_lower": (
        "On a Bezier curve, its bend trained for {steps} steps on these batches, it rises to {curve}, no lower than on"
        " the line. Take more steps; that no path was found does not prove that there is none.",
        "이 배치에서 {steps}걸음 학습한 베지에 곡선 위에서는 {curve}까지 올라 직선보다 낮지 않습니다. 걸음을"
        " 늘리십시오. 길을 찾지 못했다고 길이 없는 것은 아닙니다.",
    ),
    "way_curve_below": (
        "Measure on more batches: the lowest loss of the curve is {low}, well below both ends, so it may have memorised"
        " these batches.",
        "배치를 늘려 측정하십시오. 곡선에서 가장 낮은 손실은 {low}, 양 끝보다 훨씬 낮으므로 곡선이 이 배치를 외웠을 수"
        " 있습니다.",
    ),
    "landscape_model": (
        "The quadratic model is right to {within} at {share} of the points; statements from the Hessian hold there.",
        "이차 근사는 전체 점의 {share}에서 {within} 이내로 맞습니다. 헤시안에서 나온 값은 그 안에서 쓸 수 있습니다.",
    ),
}
