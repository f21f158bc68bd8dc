"""Verdicts of spectra: the English and the Korean sentence of every key."""

SENTENCES = {
    "spectral_after": ("After {step} steps of training:", "학습 {step}단계 뒤:"),
    "spectral_high": (
        "λ_max {high}: plain gradient descent overshoots at learning rates above {ceiling}.",
        "λ_max {high}. 단순 경사 하강은 학습률이 {ceiling}보다 크면 최저점을 지나칩니다.",
    ),
    "spectral_sharp": (
        "λ_max {high}, λ_min {low}: plain gradient descent overshoots at learning rates above {ceiling}.",
        "λ_max {high}, λ_min {low}. 단순 경사 하강은 학습률이 {ceiling}보다 크면 최저점을 지나칩니다.",
    ),
    "spectral_split": (
        "{sharp} is {ratio} times as curved as {flat}: no single step size suits both blocks.",
        "{sharp} 블록의 보통 고유값은 {flat} 블록의 {ratio}배라서 하나의 학습률이 두 블록 모두에 맞지는 않습니다.",
    ),
    "spectral_ratio": (
        "{sharp} is {ratio} times as curved as {flat}.",
        "{sharp} 블록의 보통 고유값은 {flat} 블록의 {ratio}배입니다.",
    ),
    "spectral_even": (
        "All blocks are curved alike within a factor of {ratio}: one step size fits them.",
        "모든 블록의 곡률이 {ratio}배 안에서 비슷해 하나의 학습률이 모두에 맞습니다.",
    ),
    "card_downwards_title": ("Negative curvature", "음의 곡률"),
    "card_downwards": (
        "{share} of the curvature (sum of |λ|) is negative; Gauss-Newton methods do not see that part.",
        "전체 곡률(|λ|의 합)의 {share}: 음의 곡률입니다. 가우스-뉴턴 방법은 이 부분을 보지 못합니다.",
    ),
    "card_downwards_green": ("little", "적음"),
    "card_downwards_yellow": ("some", "일부"),
    "card_downwards_red": ("much", "많음"),
    "card_downwards_rule": ("green up to {limit0}, red above {limit1}", "{limit0}까지 초록, {limit1} 초과면 빨강"),
    "card_eigen_title": ("Largest eigenvalue", "가장 큰 고유값"),
    "card_eigen_green": ("converged", "수렴함"),
    "card_eigen_yellow": ("bound", "한계"),
    "card_eigen_open": (
        "The search did not converge: λ_max is at least {high}. Allow more Hessian-vector products.",
        "아직 수렴하지 않았습니다. λ_max 하한: {high}. 헤시안-벡터 곱을 더 허용하십시오.",
    ),
    "card_eigen_rule": ("green when converged, yellow when only a bound", "수렴하면 초록, 한계뿐이면 노랑"),
}
