"""Sentences about preconditioners: the English and the Korean one of every key."""

SENTENCES = {
    "card_gain_title": ("Gain by another preconditioner", "다른 전처리의 이득"),
    "card_gain_green": ("little", "작음"),
    "card_gain_yellow": ("worth a try", "시험해 볼 만함"),
    "card_gain_rule": (
        "predicted fall of the best over that of Adam (or of none): green up to {limit0}",
        "가장 좋은 전처리와 Adam(없으면 전처리 없음)의 예측 감소량의 비: {limit0} 이하이면 초록",
    ),
    "precond_none": ("no preconditioner", "전처리 없음"),
    "precond_diagonal": ("the diagonal", "대각"),
    "precond_blocks": ("exact blocks", "정확한 블록"),
    "precond_best": (
        "One step with {best} lowers the quadratic model by {fall} ({share} of the loss), {gain} times as far as one"
        " with {base}.",
        "{best} 한 걸음은 이차 근사를 {fall}만큼(손실의 {share}) 낮춥니다. {base}의 {gain}배입니다.",
    ),
    "precond_same": (
        "No preconditioner here goes farther in one step than {base}: it lowers the quadratic model by {fall} ({share}"
        " of the loss).",
        "여기서 한 걸음에 {base}보다 멀리 가는 전처리는 없습니다. 이차 근사를 {fall}만큼(손실의 {share}) 낮춥니다.",
    ),
    "precond_level": (
        "Within the error {names} may do as well.",
        "오차 범위 안에서는 {names}도 그만큼 좋을 수 있습니다.",
    ),
    "precond_far": (
        "The loss itself changed by {measured} at that step of {name}, not by {fall}: the quadratic model does not hold"
        " that far.",
        "{name}의 그 걸음에서 손실은 {measured}만큼 줄었고, 예측은 {fall}입니다. 이차 근사가 그만큼"
        " 멀리는 맞지 않습니다.",
    ),
    "precond_round": (
        "{name} makes the Hessian roundest: its ends are {ratio} times apart.",
        "헤시안을 가장 둥글게 만드는 것은 {name}입니다. 양 끝 고윳값의 비가 {ratio}입니다.",
    ),
    "precond_spread": (
        "{name} makes the Hessian roundest: its curvature lies in about {count} of {all} directions.",
        "헤시안을 가장 둥글게 만드는 것은 {name}입니다. 곡률이 {all}개 방향 중 약 {count}개에 퍼져 있습니다.",
    ),
}
