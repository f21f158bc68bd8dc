"""Sentences about how far the quadratic model holds, in both languages."""

EN = {
    "stage_taylor": "quadratic model",
    "record_taylor": "Reach of the quadratic model of {name}",
    "taylor_title": "The loss beside its quadratic model",
    "taylor_axis": "distance r along the direction",
    "taylor_row": "radius along {name}",
    "taylor_reading": "Solid: the loss along one direction of length 1. Dashed: slope and curvature at r = 0 alone. The"
    " upright line stands at the measured radius, where the model is wrong by the stated share of its own largest"
    " change. Statements from the Hessian, such as 2/λ_max, hold inside.",
    "taylor_not": "Directions differ: a long radius along random directions says nothing about the gradient's, and a"
    " direction may be curved on one side only.",
}

KO = {
    "stage_taylor": "이차 근사",
    "record_taylor": "{name}의 이차 근사가 맞는 거리",
    "taylor_title": "손실과 이차 근사",
    "taylor_axis": "방향을 따라 간 거리 r",
    "taylor_row": "{name} 방향의 반경",
    "taylor_reading": "실선은 길이 1인 방향을 따라 본 손실, 점선은 r = 0에서의 기울기와 곡률만으로 그린 값입니다."
    " 세로선은 오른쪽으로 측정한 반경으로, 여기서 이차 근사의 오차가 정해진 비율에 이릅니다."
    " 2/λ_max처럼 헤시안에서 나온 값은 그 안에서만 맞습니다.",
    "taylor_not": "방향마다 다릅니다. 무작위 방향의 반경이 길어도 기울기 방향은 짧을 수 있고, 한쪽으로만 휘어 있을 수도"
    " 있습니다.",
}
