"""Sentences about preconditioners, in both languages."""

EN = {
    "record_precond": "Preconditioners of {name}",
    "precond_title": "The Hessian as preconditioners see it",
    "precond_ends": "size of the ends of P^-1/2 H P^-1/2",
    "precond_fall": "predicted fall of the loss by the best step",
    "precond_top": "largest",
    "precond_low": "smallest, above 0",
    "precond_below": "smallest, below 0",
    "precond_row": "ends with {name}",
    "precond_fall_row": "predicted fall with {name}",
    "precond_refused": "{name} was not made",
    "precond_reading": "Left: the largest and the smallest eigenvalue for each preconditioner P, by size; a smallest"
    " one below 0 has another colour. The closer two ends of the same sign stand, the rounder the loss looks to a step"
    " with P. Right: by how much the quadratic model falls at the best step along P^-1 g.",
    "precond_not": "Ends of different P are in different units: compare their ratio, not their place. A step with K-FAC"
    " or exact blocks costs more than one with Adam, and P and g are those of this probe.",
}

KO = {
    "record_precond": "{name}의 전처리",
    "precond_title": "전처리가 보는 헤시안",
    "precond_ends": "P^-1/2 H P^-1/2 양 끝 고윳값의 크기",
    "precond_fall": "최적 걸음의 예측 손실 감소량",
    "precond_top": "가장 큼",
    "precond_low": "가장 작음, 0보다 큼",
    "precond_below": "가장 작음, 0보다 작음",
    "precond_row": "{name}의 양 끝",
    "precond_fall_row": "{name}의 예측 감소량",
    "precond_refused": "{name}: 만들 수 없음",
    "precond_reading": "왼쪽은 전처리 P마다 가장 큰 고윳값과 가장 작은 고윳값의 크기입니다. 0보다 작은 값은 다른"
    " 색입니다. 부호가 같은 양 끝이 가까울수록 P로 걷는 걸음에 손실이 둥글게 보입니다. 오른쪽은 P^-1 g 방향의 최적"
    " 걸음에서 이차 근사가 줄어드는 양입니다.",
    "precond_not": "P가 다르면 단위도 다릅니다. 위치가 아니라 비를 비교하십시오. K-FAC이나 정확한 블록의 한 걸음은"
    " Adam보다 비싸며, P와 g는 이 데이터에서 구한 값입니다.",
}
