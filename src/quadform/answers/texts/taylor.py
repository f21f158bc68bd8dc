"""Sentences about how far the quadratic model holds: the English and the Korean one of every key."""

SENTENCES = {
    "card_reach_title": ("Reach of the quadratic model", "이차 근사가 맞는 거리"),
    "card_reach_green": ("far enough", "충분함"),
    "card_reach_yellow": ("short", "짧음"),
    "card_reach_red": ("very short", "매우 짧음"),
    "card_reach_rule": (
        "radius along the gradient, as a learning rate, over 2/λ_max: green from {limit0}, red below {limit1}",
        "기울기 방향의 반경(학습률로 환산)과 2/λ_max의 비: {limit0} 이상이면 초록, {limit1} 미만이면 빨강",
    ),
    "taylor_far": (
        "Along the gradient the quadratic model holds up to learning rate {rate}, beyond 2/λ_max = {bound}: that bound"
        " applies here.",
        "기울기 방향으로 이차 근사는 학습률 {rate}까지 맞습니다. 2/λ_max = {bound}보다 크므로"
        " 이 상한을 쓸 수 있습니다.",
    ),
    "taylor_short": (
        "Along the gradient the quadratic model breaks at learning rate {rate}, before 2/λ_max = {bound}: that bound"
        " does not apply to a step of this length. Try rates below {rate} first.",
        "기울기 방향으로 이차 근사는 학습률 {rate}에서 깨집니다. 2/λ_max = {bound}보다 작으므로"
        " 이 상한을 쓸 수 없습니다."
        " {rate}보다 작은 학습률부터 시험하십시오.",
    ),
    "taylor_unjudged": (
        "Along the gradient the quadratic model holds up to learning rate {rate}.",
        "기울기 방향으로 이차 근사는 학습률 {rate}까지 맞습니다.",
    ),
    "taylor_agree": (
        "The radius predicted from higher derivatives and the kinks of ReLU is within 1.5 times the measured one for"
        " {good} of {all} directions.",
        "고차 미분과 ReLU의 꺾임으로 예측한 반경은 {all}개 방향 중 {good}개에서 측정한 반경의 1.5배 이내입니다.",
    ),
}
