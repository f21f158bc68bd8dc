"""Sentences about the kind of a point, in both languages."""

EN = {
    "record_point": "What kind of point {name} stands at",
    "point_title": "All eigenvalues by their sign",
    "point_axis": "number of the eigenvalue, by size",
    "point_size": "|λ|",
    "point_positive": "positive",
    "point_none": "zero",
    "point_negative": "negative",
    "point_reading": "Every eigenvalue of the Hessian, by its size. What lies below the dashed line counts as zero: as"
    " close to 0 as rounding and the gradient that is left allow to tell.",
    "point_not": "Where the gradient has not vanished, negative eigenvalues do not make a saddle. A zero is one of the"
    " second order only: the loss may still bend along it.",
}

KO = {
    "record_point": "{name}: 점의 종류",
    "point_title": "부호로 나눈 모든 고유값",
    "point_axis": "크기순 고유값 번호",
    "point_size": "|λ|",
    "point_positive": "양수",
    "point_none": "0",
    "point_negative": "음수",
    "point_reading": "헤시안의 모든 고유값을 크기순으로 그렸습니다. 점선 아래는 반올림 오차와 남은 기울기 때문에"
    " 0과 구별할 수 없어 0으로 셉니다.",
    "point_not": "기울기가 사라지지 않은 곳에서는 음의 고유값이 있어도 안장점이라고 하지 않습니다."
    " 0은 이차항만의 이야기이며, 그 방향으로 손실이 휘어 있을 수 있습니다.",
}
