"""Sentences about preconditioners, in both languages."""

EN = {
    "record_precond": "Preconditioners of {name}",
    "precond_title": "The Hessian as preconditioners see it",
    "precond_ends": "size of the ends of P^(-1/2) H P^(-1/2)",
    "precond_fall": "predicted fall of the loss by the best step",
    "precond_top": "largest",
    "precond_low": "smallest, above 0",
    "precond_below": "smallest, below 0",
    "precond_shares_title": "How the eigenvalues fall off",
    "precond_part": "part of |lambda_max|",
    "precond_share": "share of eigenvalues at least as large",
    "precond_shares_reading": "A line says which share of the eigenvalues of P^-1/2 H P^-1/2 is, by size, at least this"
    " part of the largest. The longer a line stays high to the left, the more directions take part, and the rounder the"
    " loss looks to a step with P.",
    "precond_shares_not": "Shares are estimated from few random vectors: those below one in a hundred are coarse. Signs"
    " are not told apart.",
    "precond_row": "ends with {name}",
    "precond_fall_row": "predicted fall with {name}",
    "precond_refused": "{name} was not made",
    "precond_reading": "Left: the largest and the smallest eigenvalue for each preconditioner P, by size; a smallest"
    " one below 0 has another colour. The closer two ends of the same sign stand, the rounder the loss looks to a step"
    " with P. Right: by how much the quadratic model falls at the best step along P^-1 g; the thin"
    " line spans all dampings that were tried, the dot is the fall of the loss itself. A pale bar: the loss does not"
    " follow its quadratic model there.",
    "precond_not": "Ends of different P are in different units: compare their ratio, not their place. A step with K-FAC"
    " or exact blocks costs more than one with Adam, and P and g are those of this probe.",
}

KO = {
    "record_precond": "{name}의 전처리",
    "precond_title": "전처리가 보는 헤시안",
    "precond_ends": "P^(-1/2) H P^(-1/2) 양 끝 고유값의 크기",
    "precond_fall": "최적 걸음의 예측 손실 감소량",
    "precond_top": "가장 큼",
    "precond_low": "가장 작음, 0보다 큼",
    "precond_below": "가장 작음, 0보다 작음",
    "precond_shares_title": "고유값이 줄어드는 모양",
    "precond_part": "가장 큰 고유값 대비 크기",
    "precond_share": "그 이상인 고유값의 비율",
    "precond_shares_reading": "선은 P^-1/2 H P^-1/2의 고유값 가운데 크기가 가장 큰 것의 이 비율 이상인 몫을 나타냅니다."
    " 선이 왼쪽까지 높게 이어질수록 더 많은 방향이 참여하고, P로 걷는 걸음에 손실이 둥글게 보입니다.",
    "precond_shares_not": "무작위 벡터 몇 개로 추정한 값이므로 백분의 일보다 작은 몫은 거칠습니다. 부호는 구분하지"
    " 않습니다.",
    "precond_row": "{name}의 양 끝",
    "precond_fall_row": "{name}의 예측 감소량",
    "precond_refused": "{name}: 만들 수 없음",
    "precond_reading": "왼쪽은 전처리 P마다 가장 큰 고유값과 가장 작은 고유값의 크기입니다. 0보다 작은 값은 다른"
    " 색입니다. 부호가 같은 양 끝이 가까울수록 P로 걷는 걸음에 손실이 둥글게 보입니다. 오른쪽은 P^-1 g 방향의 최적"
    " 걸음에서 이차 근사가 줄어드는 양이며, 가는 선은 시도한 모든 감쇠에 걸친 범위,"
    " 점은 손실 자체의 감소량입니다. 흐린 막대에서는 손실이 이차 근사를 따르지 않습니다.",
    "precond_not": "P가 다르면 단위도 다릅니다. 위치가 아니라 비를 비교하십시오. K-FAC이나 정확한 블록의 한 걸음은"
    " Adam보다 비싸며, P와 g는 이 데이터에서 구한 값입니다.",
}
