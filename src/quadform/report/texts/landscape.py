"""Sentences about landscapes, in both languages."""

EN = {
    "stage_landscape": "landscape of the loss",
    "record_landscape": "Landscape of {name}",
    "landscape_title": "The loss around the model",
    "landscape_loss": "loss",
    "landscape_quadratic": "quadratic model",
    "landscape_scale": "Colours go in equal steps from {low} (palest) to {high} (darkest).",
    "landscape_reading": "Colour is the loss at that point of the plane; dark is high. Points inside the dotted region"
    " are those where slope and curvature at the model alone tell the loss to the stated share. Letters mark models.",
    "landscape_way_title": "The way to {other}",
    "landscape_way": "share of the way",
    "landscape_way_which": "way",
    "landscape_way_line": "straight line",
    "landscape_way_curve": "trained curve",
    "landscape_way_reading": "The loss from this model (0) to the other (1): on the straight line between their"
    " weights, and on a Bezier curve whose bend was trained for a low loss along it. On the map both ways are drawn.",
    "landscape_way_not": "The curve was trained on the batches it is measured on; on other data it may be higher. A"
    " barrier on the line does not mean that the two compute different things: units may stand in another order.",
    "landscape_reading_line": "Solid: the loss along the line. Dashed: slope and curvature at the model alone.",
    "landscape_not": "A plane shows two of very many directions. A hollow on it need not be a minimum, and distances"
    " along directions of different kinds cannot be compared.",
}

KO = {
    "stage_landscape": "손실 지형",
    "record_landscape": "{name}의 손실 지형",
    "landscape_title": "모델 주변의 손실",
    "landscape_loss": "손실",
    "landscape_quadratic": "이차 근사",
    "landscape_scale": "색은 {low}(가장 옅음)에서 {high}(가장 진함)까지 같은 간격입니다.",
    "landscape_reading": "색은 평면 위 각 점의 손실이며 진할수록 높습니다. 점이 찍힌 영역에서는 모델에서의 기울기와"
    " 곡률만으로 손실을 정해진 비율 이내로 알 수 있습니다. 글자는 모델의 위치입니다.",
    "landscape_way_title": "{other}까지 가는 길",
    "landscape_way": "길의 비율",
    "landscape_way_which": "길",
    "landscape_way_line": "직선",
    "landscape_way_curve": "학습한 곡선",
    "landscape_way_reading": "이 모델(0)에서 다른 모델(1)까지의 손실입니다. 두 가중치를 잇는 직선과, 손실이 낮도록"
    " 굽은 점을 학습한 베지에 곡선입니다. 지도에도 두 길이 그려져 있습니다.",
    "landscape_way_not": "곡선은 측정한 그 배치에서 학습했으므로 다른 데이터에서는 더 높을 수 있습니다. 직선에 장벽이"
    " 있어도 두 모델이 다른 것을 계산한다는 뜻은 아닙니다. 유닛의 순서만 다를 수 있습니다.",
    "landscape_reading_line": "실선은 직선 위의 손실, 점선은 모델에서의 기울기와 곡률만으로 그린 값입니다.",
    "landscape_not": "평면은 수많은 방향 가운데 둘만 보여 줍니다. 여기서 움푹해도 극소점이 아닐 수 있고, "
    "종류가 다른 방향의 거리는 서로 비교할 수 없습니다.",
}
