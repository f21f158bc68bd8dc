"""Sentences about the kind of a point: the English and the Korean one of every key."""

SENTENCES = {
    "point_descends": (
        "Not stationary: descending. The gradient has norm {slope}, and one step at 1/λ_max lowers the loss of {loss}"
        " by at least {drop} to second order.",
        "정지점이 아니며 아직 내려가는 중입니다. 기울기의 노름은 {slope}, 학습률 1/λ_max로 한 걸음에 이차 근사로 손실"
        " {loss} 중 {drop} 이상 내려갑니다.",
    ),
    "point_descends_newton": (
        "Not stationary: descending. Training on lowers the loss of these batches: the gradient has norm {slope}, and"
        " to second order one Newton step takes {drop} off the loss of {loss}.",
        "정지점이 아니며 아직 내려가는 중이므로 더 학습하면 이 배치의 손실이 줄어듭니다. 기울기의 노름은 {slope},"
        " 뉴턴 한 걸음에 이차 근사로 손실 {loss} 중 {drop}만큼 내려갑니다.",
    ),
    "point_descends_far": (
        "Not stationary: descending. Training on lowers the loss of these batches ({loss}): the gradient has norm"
        " {slope}. How far is not known: to second order one Newton step would take {drop} off, to below 0, and the"
        " quadratic model does not hold that far.",
        "정지점이 아니며 아직 내려가는 중이므로 더 학습하면 이 배치의 손실({loss})이 줄어듭니다. 기울기의 노름은"
        " {slope}입니다. 얼마나 줄지는 알 수 없습니다. 이차 근사로는 뉴턴 한 걸음에 {drop}만큼, 곧 0보다 아래로"
        " 내려가므로 이차 근사가 그 거리까지 맞지 않습니다.",
    ),
    "point_saddle": (
        "Stationary (gradient norm {slope}), with λ_min {low} below 0: a saddle. A step along the eigenvector of λ_min"
        " lowers the loss.",
        "정지점입니다(기울기의 노름 {slope}). λ_min {low}, 0보다 작으므로 안장점입니다. λ_min의 고유벡터 방향으로"
        " 움직이면 손실이 줄어듭니다.",
    ),
    "point_minimum": (
        "Stationary (gradient norm {slope}), and λ_min {low} is not below 0 beyond its error: a minimum to second"
        " order. Training on does not lower the loss of these batches.",
        "정지점입니다(기울기의 노름 {slope}). λ_min {low}, 오차를 넘어 0보다 작지 않으므로 이차 근사로는 극소점입니다."
        " 더 학습해도 이 배치의 손실은 줄지 않습니다.",
    ),
    "point_open": (
        "Stationary, but the search for λ_min did not converge: it is at most {low}. Allow more Hessian-vector"
        " products.",
        "정지점이지만 λ_min 탐색이 수렴하지 않았습니다. 상한: {low}. 헤시안-벡터 곱을 더 허용하십시오.",
    ),
    "point_clear": (
        "The gradient is {ratio} times its standard error over the batches ({noise}).",
        "기울기는 배치 사이 표준 오차({noise})의 {ratio}배입니다.",
    ),
    "point_noisy": (
        "The gradient is only {ratio} times its standard error over the batches ({noise}): on other data it may point"
        " elsewhere. Take more batches.",
        "기울기는 배치 사이 표준 오차({noise})의 {ratio}배에 불과해 다른 데이터에서는 방향이 다를 수 있습니다."
        " 배치를 늘리십시오.",
    ),
    "point_inertia": (
        "{plus} eigenvalues are positive, {zeros} zero, {minus} negative.",
        "고유값은 양수 {plus}개, 0 {zeros}개, 음수 {minus}개입니다.",
    ),
    "point_zeros": (
        "Symmetries of the model explain {explained} of the {zeros} zeros; more batches may remove others.",
        "0인 고유값 {zeros}개 중 {explained}개는 모델의 대칭으로 설명됩니다. 나머지는 배치를 늘리면 사라질 수"
        " 있습니다.",
    ),
    "point_zeros_all": (
        "Symmetries of the model explain all {zeros} zeros.",
        "0인 고유값 {zeros}개는 모두 모델의 대칭으로 설명됩니다.",
    ),
    "point_unexplained": (
        "No symmetry explains the {zeros} zeros. Symmetries are known of quadform's own blocks and of Linear, ReLU,"
        " Linear in `nn.Sequential`.",
        "0인 고유값 {zeros}개를 설명하는 대칭이 없습니다. 대칭은 이 패키지의 블록과 `nn.Sequential`의 `Linear`, `ReLU`,"
        " `Linear`에서만 찾습니다.",
    ),
    "point_polished": (
        "Measured at a copy that was moved by {steps} steps: the gradient fell from {before} to {slope}.",
        "{steps}걸음 옮긴 사본에서 측정했습니다. 기울기는 {before}에서 {slope}까지 줄었습니다.",
    ),
    "point_unpolished": (
        "In {steps} steps the gradient of a copy fell from {before} to {slope}, but not to zero. Allow more steps, or"
        " give the weights and batches in float64.",
        "{steps}걸음 동안 기울기는 {before}에서 {slope}까지 줄었지만 사라지지는 않았습니다. 걸음을 늘리거나"
        " 가중치와 배치를 float64로 주십시오.",
    ),
    "card_point_title": ("Kind of point", "점의 종류"),
    "card_point_green": ("minimum", "극소점"),
    "card_point_yellow": ("descending", "하강 중"),
    "card_point_red": ("saddle", "안장점"),
    "card_point_rule": (
        "stationary: a step lowers the loss by at most {limit0} of it, or the gradient is at most {limit1}; then green"
        " without and red with negative curvature",
        "한 걸음에 줄어드는 양이 손실의 {limit0} 이하이거나 기울기가 {limit1} 이하면 정지점."
        " 음의 곡률이 없으면 초록, 있으면 빨강",
    ),
}
