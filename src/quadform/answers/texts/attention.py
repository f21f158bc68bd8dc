"""Verdicts of the exact Hessian of one layer: the English and the Korean sentence of every key."""

SENTENCES = {
    "summary_few": (
        "Around this point the loss curves up in almost every direction ({share} of them curve down).",
        "이 점 주변의 손실은 거의 모든 방향에서 위로 휩니다 (아래로 휘는 방향 {share}).",
    ),
    "summary_none": ("Around this point no direction curves down.", "이 점 주변에는 아래로 휘는 방향이 없습니다."),
    "summary_some": (
        "Around this point the loss curves up in most directions, but {share} of them curve down.",
        "이 점 주변의 손실은 대부분의 방향에서 위로 휘지만 아래로 휘는 방향도 있습니다 ({share}).",
    ),
    "summary_many": (
        "Around this point {share} of the directions curve down.",
        "이 점 주변에서 손실이 아래로 휘는 방향: {share}.",
    ),
    "summary_even": (
        "The {sharp} block is only {ratio} times as sharp as {flat}: one step size can fit all weights.",
        "{sharp} 블록은 {flat} 블록보다 {ratio}배 날카로울 뿐이어서 하나의 학습률이 모든 가중치에 맞을 수 있습니다.",
    ),
    "summary_uneven": (
        "The {sharp} block is {ratio} times as sharp as {flat}: one step size fits them poorly.",
        "{sharp} 블록은 {flat} 블록보다 {ratio}배 날카로워 하나의 학습률로는 잘 맞지 않습니다.",
    ),
    "summary_split": (
        "The {sharp} block is {ratio} times as sharp as {flat}: one step size cannot fit both.",
        "{sharp} 블록은 {flat} 블록보다 {ratio}배 날카로워 하나의 학습률이 둘 다에 맞을 수 없습니다.",
    ),
    "summary_flat": (
        "The {flat} block is exactly 0 while {sharp} is not: one step size cannot fit both.",
        "{flat} 블록은 정확히 0이고 {sharp} 블록은 0이 아니어서 하나의 학습률이 둘 다에 맞을 수 없습니다.",
    ),
    "card_negative_title": ("Negative curvature", "음의 곡률"),
    "card_negative": ("{count} of {all} eigenvalues are below zero.", "고유값 {all}개 중 {count}개가 0보다 작습니다."),
    "card_negative_green": ("few", "적음"),
    "card_negative_yellow": ("some", "일부"),
    "card_negative_red": ("many", "많음"),
    "card_negative_rule": ("green up to {limit0}, red above {limit1}", "{limit0} 이하 초록, {limit1} 초과 빨강"),
    "card_uneven_title": ("Sharpest : flattest block", "가장 날카로운 블록 : 가장 평평한 블록"),
    "card_uneven": (
        "The norm of block {sharp} is {ratio} times that of block {flat}.",
        "블록 {sharp}의 노름은 블록 {flat}의 {ratio}배입니다.",
    ),
    "card_uneven_green": ("even", "고름"),
    "card_uneven_yellow": ("uneven", "고르지 않음"),
    "card_uneven_red": ("far apart", "크게 다름"),
    "card_uneven_rule": (
        "green up to {limit0} : 1, red above {limit1} : 1",
        "{limit0} : 1 이하 초록, {limit1} : 1 초과 빨강",
    ),
    "card_ceiling_title": ("Learning-rate ceiling, SGD", "SGD 학습률 상한"),
    "card_ceiling": (
        "Gradient descent is stable up to 2 / λ_max, with λ_max = {high}. This is a ceiling, not a recommendation.",
        "경사 하강법은 2 / λ_max까지 안정합니다(λ_max = {high}). 상한일 뿐 권장값이 아닙니다.",
    ),
    "card_ceiling_green": ("known", "확인됨"),
    "card_ceiling_yellow": ("uncertain", "불확실"),
    "card_ceiling_red": ("none", "없음"),
    "card_ceiling_rule": (
        "green when converged, yellow when not converged, red when no direction curves up",
        "수렴했으면 초록, 수렴하지 않았으면 노랑, 위로 휘는 방향이 없으면 빨강",
    ),
    "card_missed_title": ("Functional part against H", "H 대비 함수 부분"),
    "card_missed": (
        "The norm of H_f, which Gauss-Newton leaves out, is {share} of that of H.",
        "가우스-뉴턴이 빠뜨리는 H_f의 노름은 H의 노름의 {share}입니다.",
    ),
    "card_missed_green": ("small", "작음"),
    "card_missed_yellow": ("notable", "눈에 띔"),
    "card_missed_red": ("large", "큼"),
    "card_missed_rule": ("green up to {limit0}, red above {limit1}", "{limit0} 이하 초록, {limit1} 초과 빨강"),
    "card_entropy_title": ("Attention spread", "어텐션의 퍼짐"),
    "card_entropy": (
        "An attention row has on average {share} of the largest entropy: 100 % looks everywhere, 0 % at one token.",
        "어텐션 한 행의 엔트로피는 평균적으로 최댓값의 {share}입니다. 100 %는 모든 토큰을, 0 %는 한 토큰만 봅니다.",
    ),
    "card_entropy_green": ("spread", "퍼짐"),
    "card_entropy_yellow": ("narrow", "좁음"),
    "card_entropy_red": ("one-hot", "원-핫"),
    "card_entropy_rule": ("green from {limit0}, red below {limit1}", "{limit0} 이상 초록, {limit1} 미만 빨강"),
    "card_checks_title": ("Formula against autodiff", "공식과 자동 미분의 비교"),
    "card_checks": (
        "The closed form differs from automatic differentiation by {error} of the largest entry.",
        "닫힌 공식과 자동 미분의 차이는 가장 큰 성분의 {error}입니다.",
    ),
    "card_checks_slopes": (
        "Slopes differ from the paper by at most {gap}.",
        "기울기와 논문의 차이는 최대 {gap}입니다.",
    ),
    "card_checks_green": ("agrees", "일치"),
    "card_checks_yellow": ("loose", "느슨함"),
    "card_checks_red": ("disagrees", "불일치"),
    "card_checks_rule": (
        "green up to {limit0} and slopes within {limit2}, red above {limit1}",
        "{limit0} 이하이고 기울기 차이 {limit2} 이하이면 초록, {limit1} 초과 빨강",
    ),
}
