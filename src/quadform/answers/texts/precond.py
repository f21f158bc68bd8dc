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
        "One step with {best} lowers the quadratic model by {fall} ({share} of the loss), {gain} times as much as"
        " one with {base}.",
        "{best} 한 걸음은 이차 근사를 {fall}만큼(손실의 {share}) 낮춥니다. {base}의 {gain}배입니다.",
    ),
    "precond_same": (
        "No preconditioner here lowers the quadratic model more in one step than {base}, which lowers it by {fall}"
        " ({share} of the loss).",
        "여기서 한 걸음에 {base}보다 이차 근사를 더 낮추는 전처리는 없습니다. 낮아지는 양은 {fall}(손실의"
        " {share})입니다.",
    ),
    "precond_level": (
        "Within the error {names} may do as well.",
        "오차 범위 안에서는 {names}도 그만큼 좋을 수 있습니다.",
    ),
    "precond_dampings": (
        "Each preconditioner is shown at its best damping of {grid} times its mean eigenvalue: the largest predicted"
        " fall that the loss follows by at least half. The damping matters most for {name}: its predicted fall is {low}"
        " to {high}.",
        "전처리마다 평균 고유값의 {grid}배 중 가장 좋은 감쇠를 썼습니다. 손실이 절반 이상 따라 준 예측 감소량 가운데"
        " 가장 큰 것입니다. 감쇠의 영향이 가장 큰 것은 다음과 같습니다: {name}, 예측 감소량 {low}에서 {high}까지.",
    ),
    "precond_indefinite": (
        "H has negative eigenvalues here (down to {value} with {name}; {share} of the curvature bends downwards), so"
        " its quadratic model has no lowest point. Only steps along which it curves upwards are ranked.",
        "여기서 H에는 음의 고유값이 있습니다({name}: {value}, 아래로 휘는 곡률의 비율 {share}). 이차 근사에는 가장 낮은"
        " 점이 없으므로, 위로 휘는 방향의 걸음만 비교합니다.",
    ),
    "precond_endless": (
        "Along the step of {names} the loss curves downwards at every damping: there is no best step to rank.",
        "{names}의 걸음에서는 어느 감쇠에서도 손실이 아래로 휩니다. 비교할 최적 걸음이 없습니다.",
    ),
    "precond_far": (
        "The quadratic model does not hold as far as the best step of {names}: in brackets the predicted and the"
        " measured fall of the loss, which rises where that is below 0.",
        "다음 최적 걸음까지는 이차 근사가 맞지 않습니다: {names}. 괄호 안은 손실 감소량의 예측값과 측정값이며, 측정값이"
        " 0보다 작으면 손실이 늘어난 것입니다.",
    ),
    "precond_round": (
        "The Hessian is conditioned best with {name}: its largest eigenvalue is {ratio} times its smallest.",
        "헤시안의 조건을 가장 좋게 하는 것은 {name}입니다. 가장 큰 고유값과 가장 작은 고유값의 비는 {ratio}입니다.",
    ),
    "precond_spread": (
        "The Hessian is conditioned best with {name}: its curvature is spread over about {count} of {all} directions.",
        "헤시안의 조건을 가장 좋게 하는 것은 {name}입니다. 곡률이 {all}개 방향 중 약 {count}개에 퍼져 있습니다.",
    ),
}
